"""Which names may stand for one model, wholly or in part: what happens to one of them is in doubt for the others."""

from __future__ import annotations

import functools
import re
from collections.abc import Hashable, Iterable

from amp_audit.events import Event, Id, Kind
from amp_audit.state import State, get
from amp_audit.static.binding.project import External
from amp_audit.static.source.names import MOST_NAMES
from amp_audit.static.walking.lineage import REPLICATED, with_children
from amp_audit.static.walking.values import Func, Instance, Literal, Method, Symbol, Value, key_of, label
from amp_audit.static.walking.world import MADE_OF, World

_PARTIAL = frozenset({Kind.ZERO_GRAD, Kind.UNSCALE, Kind.STEP})
_CONCERNING = _PARTIAL | {Kind.BACKWARD}
_NAME = re.compile(r"(?:model|net|network|module|ddp)s?\d*$", re.IGNORECASE)
_PLAIN = re.compile(
    r"(.*?[.(])(?:(?:ddp|dp|raw|core|unwrapped|wrapped|bare|base|orig|original|compiled)_?)?(?:model|network|net|module)"
    r"(?:_(?:ddp|dp|without_ddp|wo_ddp|engine))?(?=[.)\[]|$)",
    re.IGNORECASE,
)
"""What holds a model, or takes one, under a name that does not tell it from another one (``self.network``)."""
_COPY = re.compile(r"copy|clone", re.IGNORECASE)


@functools.lru_cache(maxsize=MOST_NAMES)
def _copies(name: str) -> bool:
    return _COPY.search(name) is not None


def note_made(key: str, callee: Value, name: str, given: Iterable[Value], world: World) -> None:
    """Keep of what a call that is not followed gives that it was made of the one model that went in."""
    if _copies(name) or (isinstance(callee, External) and callee.dotted.startswith("torch.")):
        return
    own = callee.bound if isinstance(callee, Func) else callee.base if isinstance(callee, Method) else None
    models = {key_of(item): item for item in (*given, own) if item is not None and may_be_model(item, world)}
    if len(models) == 1:
        world.put(key, MADE_OF, next(iter(models.values())))


def may_be_model(value: Value, world: World) -> bool:
    """A symbol is taken for one by its name, or by what it was made of: nothing but doubt is concluded from it."""
    if isinstance(value, Instance):
        return value.model
    if not isinstance(value, Symbol):
        return False
    return _is_named_model(value.text) or (value.key, MADE_OF) in world.heap


@functools.lru_cache(maxsize=MOST_NAMES)
def _is_named_model(text: str) -> bool:
    return _NAME.search(text.rpartition(".")[2]) is not None


def is_wrapped(base: Symbol, world: World) -> bool:
    """Whether ``.module`` of it is the model itself: it went into DistributedDataParallel, or is called a model."""
    return world.heap.get((base.key, REPLICATED)) == Literal.of(True) or may_be_model(base, world)


def concerned_in_part(world: World, event: Event) -> list[Id]:
    """The owners that an event concerns perhaps, or in part: the model that a part belongs to (``model`` for
    ``model.encoder``, of those built out of sight), those of which several optimizers have some, where one that has not
    all clears its own, and those that came out of one call, or went into it (``model`` and ``wrap(model)[0]``).
    """
    if event.kind not in _CONCERNING:
        return []
    kin = _kin(set(event.owners or get(world.state.links, event.optimizer) or ()), world)
    return kin + _wholes(world.state, event) if event.kind in _PARTIAL else kin


def _wholes(state: State, event: Event) -> list[Id]:
    linked = get(state.links, event.optimizer) or ()
    parts = event.owners or linked
    named = [part for part in parts if isinstance(part, str)]
    known = [owner for owner, _ in state.owners if isinstance(owner, str) and owner not in named]
    wholes: list[Id] = [owner for owner in known if any(part.startswith(f"{owner}.") for part in named)]
    if event.kind is Kind.ZERO_GRAD and event.optimizer not in state.whole:
        others = {owner for other, owners in state.links if other != event.optimizer for owner in owners}
        wholes += [owner for owner in linked if owner in others]
    return wholes


def _kin(named: set[Id], world: World) -> list[Id]:
    others = [owner for owner, _ in world.state.owners if owner not in named]
    if not named or not others:
        return []
    family = {member for owner in named for member in _family(owner, world)} | _held(named, world)
    return [owner for owner in others if not family.isdisjoint(_family(owner, world))]


def _held(named: set[Id], world: World) -> set[Hashable]:
    """Of what a property or a method that was not followed gave: the models that its object is, or holds."""
    unseen = [owner for owner in named if isinstance(owner, str) and owner.startswith("Instance(")]
    models = {
        model
        for (holder, _), value in (world.heap.items() if unseen else ())
        if isinstance(value, Instance) and value.model
        for model, source in ((value.id, holder), (value.id, value.id))
        if any(owner.startswith(f"Instance{label(source)}.") for owner in unseen)
    }
    return {part for model in models for part in with_children(model, world)}


def _family(owner: Hashable, world: World) -> set[Hashable]:
    """The models that something was made of, up to those that were made of nothing that is known, and itself; for those
    that were set out of sight and have no telling name, what they are held by.
    """
    found: set[Hashable] = {owner}
    while True:
        plain = _PLAIN.match(owner.removeprefix("Instance")) if isinstance(owner, str) else None
        if plain is not None:
            found.add(f"{plain[1]}#")
        made = world.heap.get((owner, MADE_OF))
        if made is None and isinstance(owner, str) and owner.endswith("]"):
            made = world.heap.get((owner.rpartition("[")[0], MADE_OF))
        owner = made.id if isinstance(made, Instance) else made.key if isinstance(made, Symbol) else None
        if owner is None or owner in found:
            return found
        found.add(owner)
