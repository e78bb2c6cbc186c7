"""The state machine of mixed-precision training: ``advance(state, event) -> (state, facts)``.

One machine reads the events of the code and the events of a run. It is pure: states are immutable and hashable,
identities are opaque, and it knows no positions, no paths and no rules. Facts say what was true when the event
happened; rules are predicates over them. ``"unknown"`` (and None) satisfies no condition.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping

from amp_audit import gradients, strangers
from amp_audit.events import Event, Id, Kind, Via
from amp_audit.gradients import Gradients
from amp_audit.records import replace
from amp_audit.state import LOW_PRECISION, Region, Scaler, State, change, get, live_region, put, region_dtype

ANYONE: Id = "*"
"""The owner of gradients that no model or parameter group is known for."""

Facts = Mapping[str, object]


def advance(state: State, event: Event) -> tuple[State, Facts]:
    """The state after ``event``, and what was true when it happened."""
    facts: dict[str, object] = {
        "via": event.via.value if event.via else None,
        "dtype": event.dtype,
        "enabled": event.enabled,
        "region": "live" if live_region(state) else "none",
        "region_dtype": region_dtype(state),
        "foreign": (region := live_region(state)) is not None and region.foreign,
        "skipped": event.skipped,
        "sharded": event.sharded,
        "frozen": event.frozen,
    }
    handler = _HANDLERS.get(event.kind)
    after = handler(state, event, facts) if handler else state
    facts.update(_facts_of(after.ever))
    ever, blind = after.ever | words(event), after.blind and event.kind not in _ENDS_CLIPPING
    if ever != after.ever or blind is not after.blind:
        after = replace(after, ever=ever, blind=blind)
    return after, facts


@functools.lru_cache(maxsize=1 << 12)
def _facts_of(ever: frozenset[str]) -> Facts:
    return {f"ever.{word}": True for word in ever}


_ENDS_CLIPPING = frozenset(
    {Kind.BACKWARD, Kind.ZERO_GRAD, Kind.UNSCALE, Kind.DESCALE, Kind.GRAD_WRITE, Kind.STEP, Kind.ITERATION_END}
)
"""After these, what a clip found is told no more."""


def words(event: Event) -> frozenset[str]:
    """The words by which rules ask whether an event happened at all, e.g. ``step`` and ``step.scaler``."""
    return _words(event.kind, event.via, event.scaled, event.dtype, event.ran, event.given, event.contents)


@functools.lru_cache(maxsize=1 << 12)
def _words(
    kind: Kind,
    via: Via | None,
    scaled: bool | None,
    dtype: str | None,
    ran: str | None,
    given: bool,
    contents: frozenset[str],
) -> frozenset[str]:
    found = {kind.value}
    if via:
        found.add(f"{kind.value}.{via.value}")
    if kind is Kind.BACKWARD and scaled is None:
        found.add("backward.unknown")
    elif kind is Kind.BACKWARD:
        found.add("backward.scaled" if scaled else "backward.plain")
        if scaled and not _in_float32(ran, dtype):
            found.add("backward.scaled.low")
        if not scaled and dtype in LOW_PRECISION:
            found.add(f"backward.plain.{dtype}")
    if kind is Kind.DESCALE and given:
        found.add("descale.perhaps")
    if kind in (Kind.SAVE, Kind.LOAD):
        found |= {f"{kind.value}.{item}" for item in contents}
        if contents == {"scaler"}:
            found.add(f"{kind.value}.scaler_only")
    return frozenset(found)


def _in_float32(ran: str | None, dtype: str | None) -> bool:
    """Whether a loss surely comes from models that ran, all of them, where no region was on."""
    return ran in ("outside", "off") and dtype not in LOW_PRECISION


# Whose gradients an event concerns


def concerned(state: State, event: Event) -> tuple[tuple[Id, ...], bool]:
    """The owners an event concerns, and whether that is an assumption.

    Unresolved owners mean the only live owner; several live owners stand for each other only while they agree.
    """
    owners = event.owners
    if not owners and event.optimizer is not None:
        owners = get(state.links, event.optimizer)
    if owners:
        known = tuple(owner for owner in owners if get(state.owners, owner) is not None)
        if known:
            return known, False
        return ((ANYONE,), False) if get(state.owners, ANYONE) else (owners, False)
    live = tuple(name for name, held in state.owners if held.value != "none" and not held.consumed)
    if len(live) == 1:
        return live, len(state.owners) > 1
    return (live or tuple(name for name, _ in state.owners)), True


def describe(state: State, owners: Iterable[Id], assumed: bool) -> dict[str, object]:
    """Facts about the gradients of several owners taken together; where they disagree, unknown."""
    held = _held(state, owners)
    telling = [one for one in held if one.value != "none"] or held
    dtypes = {one.dtype for one in telling}
    scalers = {one.scaler for one in telling}
    return {
        "gradients": _together({one.value for one in telling}, assumed),
        "consumed": all(one.consumed for one in telling),
        "cleared": all(one.cleared for one in held),
        "clipped_before": all(one.clipped for one in held),
        "rescaled": any(one.rescaled for one in telling),
        "assumed": assumed or any(one.assumed for one in telling),
        "forward_dtype": dtypes.pop() if len(dtypes) == 1 else None,
        "scaler": scalers.pop() if len(scalers) == 1 else None,
    }


def _held(state: State, owners: Iterable[Id]) -> list[Gradients]:
    return [get(state.owners, owner) or Gradients("unknown") for owner in owners] or [Gradients("unknown")]


_MIXED = ("scale", "region_enter", *(f"backward.plain.{dtype}" for dtype in sorted(LOW_PRECISION)))


def _is_mixed(state: State) -> bool:
    """Whether mixed precision plays a part: order mistakes of other training are not this tool's business."""
    return not state.ever.isdisjoint(_MIXED)


def _together(values: set[str], assumed: bool) -> str:
    """One word for the gradients of several owners; parts with the scale and parts without it are mixed."""
    if len(values) == 1:
        return next(iter(values))
    return "mixed" if not assumed and values <= {"plain", "scaled", "mixed"} else "unknown"


# What each event does


def _scaler_new(state: State, event: Event, facts: dict[str, object]) -> State:
    return replace(state, scalers=put(state.scalers, event.scaler, Scaler(event.site, "open", whole=True)))


def _optimizer_new(state: State, event: Event, facts: dict[str, object]) -> State:
    owners = event.owners or ()
    table = state.owners
    for owner in owners:
        if get(table, owner) is None:
            table = put(table, owner, Gradients())
    links = put(state.links, event.optimizer, owners) if owners else state.links
    whole = state.whole | {event.optimizer} if owners and event.whole else state.whole - {event.optimizer}
    parts = put(state.parts, event.optimizer, event.within) if event.within else state.parts
    return replace(state, links=links, owners=table, whole=whole, parts=parts)


def _region_enter(state: State, event: Event, facts: dict[str, object]) -> State:
    outer = region_dtype(state)
    entered = Region(event.region, event.device, event.dtype, event.enabled, event.cache, foreign=event.foreign)
    around = live_region(state)
    same_device = around is not None and (None in (around.device, event.device) or around.device == event.device)
    facts["dtype_conflict"] = (
        event.enabled is True
        and event.cache
        and same_device
        and {outer, event.dtype} <= LOW_PRECISION
        and outer != event.dtype
    )
    return replace(state, regions=(*state.regions, entered))


def _region_exit(state: State, event: Event, facts: dict[str, object]) -> State:
    return replace(state, regions=state.regions[:-1])


def _forward(state: State, event: Event, facts: dict[str, object]) -> State:
    """``stale``: how the weights have changed since they were cached. ``blank``: they were cached without gradients.
    ``recast``: the region has cast them before, and did not keep what came of it.
    """
    region = live_region(state)
    if region is not None and region.dtype is not None and event.enabled is not False:
        for owner in event.owners or ():
            state = replace(state, lowered=put(state.lowered, owner, region.dtype))
    if region is not None and not region.cache and event.owners:
        return _uncached(state, region, frozenset(event.owners), facts)
    if region is None or not region.cache:
        return state
    outermost, owners = state.regions[0], frozenset(event.owners or (ANYONE,))
    facts["stale"] = next((how for owner, how in outermost.stale if owner in owners), None)
    trained = {owner for _, linked in state.links for owner in linked}
    facts["blank"] = event.enabled is not False and not (owners & trained).isdisjoint(outermost.blank)
    if event.enabled is False:
        return _filled_blank(state, owners)
    return replace(state, regions=(replace(outermost, filled=outermost.filled | owners), *state.regions[1:]))


def _uncached(state: State, region: Region, owners: frozenset[Id], facts: dict[str, object]) -> State:
    """Weights are cast in a region that keeps nothing, perhaps not for the first time."""
    facts["recast"] = not owners.isdisjoint(region.ran)
    return replace(state, regions=(*state.regions[:-1], replace(region, ran=region.ran | owners)))


def _filled_blank(state: State, owners: frozenset[Id]) -> State:
    """Weights that are not cached yet are, by a pass that records no gradients."""
    outermost = state.regions[0]
    blank = outermost.blank | (owners - outermost.filled)
    return replace(
        state, regions=(replace(outermost, filled=outermost.filled | owners, blank=blank), *state.regions[1:])
    )


def _stepped(state: State, event: Event) -> Iterable[Id]:
    """The owners that an optimizer has: a loss may be a module too, whose gradients nobody clears, as it has none."""
    owners = event.owners or ()
    linked = {owner for _, held in state.links for owner in held}
    return [owner for owner in owners if owner in linked] or (() if linked else owners)


def _of_another(held: Gradients, event: Event) -> bool:
    """Whether there are gradients with the scale of another scaler than the one of this loss."""
    known = None not in (held.scaler, event.scaler) and held.scaler != event.scaler
    return bool(event.scaled) and held.waiting and held.value == "scaled" and known


def _evaluate(state: State, event: Event, facts: dict[str, object]) -> State:
    """A model runs without gradients. ``trained``: where it ran when there were some; ``compared``: where those did
    with which it is compared as a reference; ``dtypes``: whether the regions of both have the same.
    """
    where = {get(state.trained, owner) for owner in event.owners or ()}
    facts.update(ran=event.ran, trained=where.pop() if len(where) == 1 else None)
    others = {ran for _, ran in state.trained} if event.reference and facts["trained"] is None else set()
    facts["compared"] = others.pop() if len(others) == 1 else None
    before, now = {get(state.lowered, owner) for owner in event.owners or ()}, region_dtype(state)
    known = len(before) == 1 and not {None, now} & before
    facts["dtypes"] = "differ" if known and now is not None else "same"
    region = live_region(state)
    owners = frozenset(event.owners or ())
    if region is not None and not region.cache and not event.frozen:
        return _uncached(state, region, owners, facts)
    if region is None or not region.cache:
        return state
    if not event.frozen:  # of what requires no gradient nothing is kept
        facts["stale"] = next((how for owner, how in state.regions[0].stale if owner in owners), None)
    return _filled_blank(state, owners)


def _jit_trace(state: State, event: Event, facts: dict[str, object]) -> State:
    """``kept``: the trace, or the second one that checks it, meets the copies of weights that the region has kept: they
    require gradients, and are constants to it, which torch refuses.
    """
    region = live_region(state)
    keeps = region is not None and all(each.cache for each in state.regions)
    owners = frozenset(event.owners or ())
    facts["kept"] = keeps and (event.given or not owners.isdisjoint(state.regions[0].filled))
    facts["raises"] = facts["kept"]
    return _forward(state, event, facts)


def _backward(state: State, event: Event, facts: dict[str, object]) -> State:
    facts.update(scaled=event.scaled, detached=event.detached, term=event.term)
    facts.update(ran=event.ran, float32=_in_float32(event.ran, event.dtype))
    facts["seen"] = bool(event.owners) and not any(isinstance(owner, str) for owner in event.owners or ())
    facts["other_scaler"] = any(_of_another(held, event) for held in _held(state, _stepped(state, event)))
    if event.detached:
        return state
    owners, assumed = event.owners or (), False
    if not owners:
        owners, assumed = tuple(name for name, _ in state.owners), len(state.owners) > 1
    owners = owners or (ANYONE,)
    facts.update(describe(state, owners, assumed))
    if event.ran is not None:
        for owner in event.owners or ():
            state = replace(state, trained=put(state.trained, owner, event.ran))
    state = strangers.after_backward(state, event)
    return change(state, owners, lambda held: gradients.added(held, event, assumed))


def _phase(state: State, event: Event) -> str:
    known = get(state.phases, (event.scaler, event.optimizer))
    scaler = get(state.scalers, event.scaler)
    if known is not None:
        return known
    return "ready" if scaler is not None and scaler.round != "unknown" else "unknown"


def _never_scaled(state: State, event: Event) -> bool:
    """Whether a scaler that is known from its beginning has no scale yet: the first ``scale`` makes it."""
    scaler = get(state.scalers, event.scaler)
    return scaler is not None and scaler.whole and "scale" not in state.ever


def _left(state: State, event: Event) -> str:
    return get(state.left, (event.scaler, event.optimizer)) or "no"


def _checked(state: State, event: Event, phase: str, facts: Facts) -> State:
    """The (scaler, optimizer) in its new phase. An optimizer without any gradients leaves no inf check behind; where it
    is not known whose they are, one that some part of the code out of sight has made does."""
    scaler = get(state.scalers, event.scaler) or Scaler()
    if facts["gradients"] != "none":
        scaler = replace(scaler, round="checked")
    elif facts["assumed"] and scaler.round == "open":
        scaler = replace(scaler, round="unknown")
    phases = put(state.phases, (event.scaler, event.optimizer), phase)
    return replace(state, phases=phases, scalers=put(state.scalers, event.scaler, scaler))


def _unscale(state: State, event: Event, facts: dict[str, object]) -> State:
    owners, assumed = concerned(state, event)
    facts.update(describe(state, owners, assumed), phase=_phase(state, event), left=_left(state, event))
    _doubt_unscaled(state, event, facts)
    facts.update(strangers.told(state, event))
    facts["shared"] = _shared(state, event)
    facts["raises"] = facts["phase"] in ("unscaled", "stepped") or _never_scaled(state, event)
    if facts["phase"] in ("unscaled", "stepped"):
        return state  # torch raises before it touches anything
    done = strangers.put_in(change(state, owners, gradients.divided_by_scale), event, "unscaled")
    return _checked(done, event, "unscaled", facts)


def _shared(state: State, event: Event) -> bool:
    """Whether the gradients of an optimizer were unscaled for another one that has the same parameters: one of both has
    all of a model's, the other one them too, or a part.
    """
    done = {key for key, phase in state.phases if phase in ("unscaled", "stepped")}
    others = {key[1] for key in done if isinstance(key, tuple) and key[0] == event.scaler} - {event.optimizer}
    mine, some = _all_of(state, event.optimizer), _some_of(state, event.optimizer)
    return any(mine & _some_of(state, other) or some & _all_of(state, other) for other in others)


def _all_of(state: State, optimizer: Id | None) -> set[Id]:
    """The owners all of whose parameters an optimizer has."""
    return set(get(state.links, optimizer) or ()) if optimizer in state.whole else set()


def _some_of(state: State, optimizer: Id | None) -> set[Id]:
    """Those of which it surely has some."""
    return _all_of(state, optimizer) | set(get(state.parts, optimizer) or ())


def _doubt_unscaled(state: State, event: Event, facts: dict[str, object]) -> None:
    """Of an optimizer whose parameters are not known, the gradients that another one had unscaled may not be."""
    own = (event.scaler, event.optimizer)
    others = [key for key, phase in state.phases if phase == "unscaled" and key != own and _of(key, event.scaler)]
    if facts["gradients"] == "unscaled" and get(state.links, event.optimizer) is None and others:
        facts["gradients"] = "unknown"


def _step(state: State, event: Event, facts: dict[str, object]) -> State:
    if event.via is Via.FRAMEWORK:
        return _framework_step(state, event)
    owners, assumed = concerned(state, event)
    facts.update(describe(state, owners, assumed))
    held = _held(state, owners)
    facts.update(
        leftover=all(one.leftover for one in held if one.waiting) and any(one.waiting for one in held),
        always=not event.sometimes and not event.boundaries and not event.given,
        summed=gradients.summed(held, event),
        wiped=gradients.wiped_late(held, event),
        mixed=_is_mixed(state),
    )
    if facts["consumed"] and _is_another(state, event):
        facts["gradients"] = "unknown"
    if event.via is Via.SCALER:
        facts.update(phase=_phase(state, event), left=_left(state, event))
        facts["blind"] = state.blind and facts["phase"] in ("ready", "unknown")
        _doubt_unscaled(state, event, facts)
    facts.update(strangers.told(state, event))
    if event.via is Via.SCALER:
        facts["shared"] = facts["phase"] == "ready" and _shared(state, event)
        without = facts["gradients"] == "none" and not assumed
        facts["raises"] = facts["phase"] == "stepped" or without or _never_scaled(state, event)
        if facts["phase"] == "stepped":
            return state  # torch raises before it touches anything
    state = _weights_changed(state, owners if not assumed else None, "step")
    spent = replace(
        change(state, owners, gradients.spent),
        unknown_stepped=state.unknown_stepped or strangers.is_stranger(state, event),
    )
    spent = strangers.put_in(spent, event, "stepped")
    if event.via is not Via.SCALER:
        phases = [value for key, value in state.phases if isinstance(key, tuple) and key[1] == event.optimizer]
        facts["phase"] = phases[0] if len(phases) == 1 else None
        return spent
    before = get(state.stepped_by, event.optimizer)
    facts["scaler_replaced"] = before is not None and before != event.scaler and _same_site(state, before, event.scaler)
    spent = replace(spent, stepped_by=put(spent.stepped_by, event.optimizer, event.scaler))
    spent = replace(spent, stepped=(event.loops, event.skipped))
    return _checked(spent, event, "stepped", facts)


def _framework_step(state: State, event: Event) -> State:
    """A step that goes through a scaler out of sight: of the gradients it only says that they are used."""
    owners, assumed = concerned(state, event)
    changed = _weights_changed(state, None if assumed else owners, "step")
    used = strangers.put_in(changed if assumed else change(changed, owners, gradients.spent), event, "stepped")
    scalers = {key[0] for key, _ in used.phases if isinstance(key, tuple) and key[1] == event.optimizer}
    phases = tuple((key, "unknown" if _of_any(key, scalers) else phase) for key, phase in used.phases)
    known = tuple((key, replace(s, round="unknown", whole=False) if key in scalers else s) for key, s in used.scalers)
    return replace(used, phases=phases, scalers=known, stepped=(event.loops, event.skipped))


def _of_any(key: Id, scalers: set[Id]) -> bool:
    return isinstance(key, tuple) and key[0] in scalers


def _is_another(state: State, event: Event) -> bool:
    """Whether an optimizer of which nothing is known steps, where a scaler has stepped others: it may have parameters
    of its own, whose gradients none of them has used.
    """
    stranger = strangers.is_stranger(state, event)
    return stranger and bool(state.stepped_by) and get(state.stepped_by, event.optimizer) is None


def _same_site(state: State, one: Id, two: Id | None) -> bool:
    left, right = get(state.scalers, one), get(state.scalers, two)
    return left is not None and right is not None and left.site is not None and left.site == right.site


def _update(state: State, event: Event, facts: dict[str, object]) -> State:
    scaler = get(state.scalers, event.scaler) or Scaler()
    facts["round"] = scaler.round
    facts["given"] = event.given
    facts["raises"] = scaler.round == "open" and not event.given
    pending = [name for name, held in state.owners if _pends(held, event.scaler)]
    facts["pending"] = bool(pending)
    phases = tuple((key, "ready" if _of(key, event.scaler) else value) for key, value in state.phases)
    left = tuple((key, value) for key, value in state.left if not _of(key, event.scaler))
    scalers = put(state.scalers, event.scaler, replace(scaler, round="open", used=False))
    reads = tuple((key, "stale" if _of(key, event.scaler) else value) for key, value in state.reads)
    updated = replace(state, phases=phases, left=left, scalers=scalers, reads=reads)
    updated = strangers.after_update(updated, event.scaler)
    return change(updated, pending, lambda held: replace(held, rescaled=True))


def _pends(held: Gradients, scaler: Id | None) -> bool:
    """Whether gradients surely still carry the scale of this scaler."""
    return held.value == "scaled" and not held.consumed and not held.assumed and held.scaler in (None, scaler)


def _of(key: Id, scaler: Id | None) -> bool:
    return isinstance(key, tuple) and key[0] == scaler


def _zero_grad(state: State, event: Event, facts: dict[str, object]) -> State:
    owners, assumed = concerned(state, event)
    facts.update(describe(state, owners, assumed))
    dropped = event.given and any(phase == "unscaled" for _, phase in state.phases)
    wasted = any(held.waiting for held in _held(state, owners)) and not dropped
    state = strangers.put_in(state, event, "wasted" if wasted else "empty")
    if assumed and len(owners) > 1:
        # Whose gradients went is unknown, so nothing may be concluded from what is left.
        return change(state, owners, lambda held: Gradients("unknown", assumed=True))

    facts.update(wasted=gradients.wasted(_held(state, owners), event), mixed=_is_mixed(state))
    gone = change(state, owners, lambda held: gradients.cleared(held, event))
    return change(gone, owners, lambda held: replace(held, cleared=False)) if dropped else gone


def _touch(state: State, event: Event, facts: dict[str, object]) -> State:
    owners, assumed = concerned(state, event)
    facts.update(describe(state, owners, assumed))
    return state


def _clip(state: State, event: Event, facts: dict[str, object]) -> State:
    owners, assumed = concerned(state, event)
    facts.update(describe(state, owners, assumed), mixed=_is_mixed(state))
    if state.unknown_stepped and (not event.owners or (facts["consumed"] and strangers.others_wait(state))):
        facts["consumed"] = "unknown"  # of several optimizers, it need not be the one that has stepped
    facts["premature"] = gradients.wasted(_held(state, owners), event) == "every"
    seen = [owner for owner in owners if get(state.owners, owner) is not None]
    clipped = change(state, seen, lambda held: replace(held, clipped=held.value == "none"))
    return replace(clipped, blind=facts["gradients"] == "unknown")


def _pickle(state: State, event: Event, facts: dict[str, object]) -> State:
    phases = [phase for key, phase in state.phases if _of(key, event.scaler)]
    facts["midway"] = any(phase in ("unscaled", "stepped") for phase in phases)
    return state


def _hook(state: State, event: Event, facts: dict[str, object]) -> State:
    facts["proportional"] = event.proportional
    return state


def _grad_write(state: State, event: Event, facts: dict[str, object]) -> State:
    """A write by hand may have divided by the scale, or put gradients where there were none."""
    owners, assumed = concerned(state, event)
    facts.update(describe(state, owners, assumed), proportional=event.proportional)
    plain = ("plain", "unscaled")

    def written(held: Gradients) -> Gradients:
        if held.consumed:  # what is left of them was chosen, as a momentum of one's own is
            return Gradients("unknown", assumed=held.assumed)
        return held if held.value in plain else replace(held, value="unknown")

    return change(strangers.after_write(state), owners, written)


def _autograd_grad(state: State, event: Event, facts: dict[str, object]) -> State:
    """Gradients that no optimizer owns. ``float16``: of what a region computed in it, as far as is known."""
    region = live_region(state)
    here = region is not None and region.dtype in (None, "float16")
    facts.update(
        scaled=event.scaled,
        float16=event.dtype == "float16" or (event.dtype is None and here),
        assumed=event.dtype is None and (region is None or region.dtype is None),
    )
    return state


def _scale(state: State, event: Event, facts: dict[str, object]) -> State:
    """What was read since the last update is the scale that is multiplied with here."""
    facts["again"] = bool(event.scaled)
    reads = tuple((key, "fresh" if _of(key, event.scaler) and value == "next" else value) for key, value in state.reads)
    scaler = get(state.scalers, event.scaler) or Scaler()
    return replace(state, reads=reads, scalers=put(state.scalers, event.scaler, replace(scaler, used=True)))


def _scale_read(state: State, event: Event, facts: dict[str, object]) -> State:
    scaler = get(state.scalers, event.scaler)
    updated = scaler is not None and not scaler.used and "update" in state.ever
    return replace(state, reads=put(state.reads, (event.scaler, event.read), "next" if updated else "fresh"))


def _descale(state: State, event: Event, facts: dict[str, object]) -> State:
    """Something scaled is divided by the scale, as it was when it was read."""
    facts["scale"] = "unknown" if event.given else get(state.reads, (event.scaler, event.read)) or "unknown"
    return state


def _cache_clear(state: State, event: Event, facts: dict[str, object]) -> State:
    return replace(
        state,
        regions=tuple(replace(region, filled=frozenset(), stale=(), blank=frozenset()) for region in state.regions),
    )


def _weight_write(state: State, event: Event, facts: dict[str, object]) -> State:
    return _weights_changed(state, event.owners, "write")


def _weights_changed(state: State, owners: Iterable[Id] | None, how: str) -> State:
    changed = frozenset(owners or (ANYONE,))
    if any(region.ran for region in state.regions):
        cast = (region.ran if ANYONE in changed else region.ran & changed for region in state.regions)
        fresh = (replace(region, ran=region.ran - gone) for region, gone in zip(state.regions, cast))
        state = replace(state, regions=tuple(fresh))
    if not state.regions or not state.regions[0].filled:
        return state
    outermost = state.regions[0]
    affected = outermost.filled if ANYONE in changed else outermost.filled & (changed | {ANYONE})
    stale = outermost.stale
    for owner in affected:
        stale = put(stale, owner, how)
    return replace(state, regions=(replace(outermost, stale=stale), *state.regions[1:]))


def _save(state: State, event: Event, facts: dict[str, object]) -> State:
    """``trained``: how, up to here. Code that has a scaler and has not trained yet is taken to be trained by others."""
    facts.update({f"holds.{item}": item in event.contents for item in ("model", "optimizer", "scaler")})
    plain = "plain" if "backward" in state.ever else "elsewhere" if state.scalers else "unknown"
    facts["trained"] = "scaled" if "scale" in state.ever else plain
    return state


def _iteration_end(state: State, event: Event, facts: dict[str, object]) -> State:
    """``dirty``: what an optimizer is left in that no earlier iteration had left so already."""
    fresh = [(key, value) for key, value in state.phases if value in ("unscaled", "stepped")]
    fresh = [(key, value) for key, value in fresh if get(state.left, key) is None]
    facts.update(dirty=fresh[0][1] if fresh else "no", early=event.early)
    left = state.left
    for key, _ in fresh:
        left = put(left, key, "early" if event.early else "fell")
    owners = tuple((name, gradients.carried_on(held, event)) for name, held in state.owners)
    return replace(state, owners=owners, left=left, stepped=None)


def _follow_step(state: State, event: Event, facts: dict[str, object]) -> State:
    """``after``: a step of the scaler in the same iteration, which may have been skipped (step) or was (skipped); or a
    backward whose scaled gradients still wait for theirs.
    """
    loops, skipped = state.stepped or ((None,), False)
    together = event.loops[: len(loops)] == loops
    waits = any(held.waiting and held.fresh and held.value == "scaled" for _, held in state.owners)
    facts.update(after=("skipped" if skipped else "step") if together else "backward" if waits else "none")
    facts.update(sometimes=event.sometimes, given=event.given)
    return state


def _load(state: State, event: Event, facts: dict[str, object]) -> State:
    """A scaler that goes on from a saved state is as good as the one that saved it."""
    scaler = get(state.scalers, event.scaler)
    if scaler is None:
        return state
    return replace(state, scalers=put(state.scalers, event.scaler, replace(scaler, site=None)))


_HANDLERS: Mapping[Kind, Callable[[State, Event, dict[str, object]], State]] = {
    Kind.SCALER_NEW: _scaler_new,
    Kind.OPTIMIZER_NEW: _optimizer_new,
    Kind.REGION_ENTER: _region_enter,
    Kind.REGION_EXIT: _region_exit,
    Kind.FORWARD: _forward,
    Kind.EVALUATE: _evaluate,
    Kind.JIT_TRACE: _jit_trace,
    Kind.BACKWARD: _backward,
    Kind.AUTOGRAD_GRAD: _autograd_grad,
    Kind.SCALE: _scale,
    Kind.SCALE_READ: _scale_read,
    Kind.DESCALE: _descale,
    Kind.UNSCALE: _unscale,
    Kind.CLIP: _clip,
    Kind.GRAD_READ: _touch,
    Kind.GRAD_WRITE: _grad_write,
    Kind.HOOK: _hook,
    Kind.PICKLE: _pickle,
    Kind.STEP: _step,
    Kind.UPDATE: _update,
    Kind.SCHEDULER_STEP: _follow_step,
    Kind.AVERAGE: _follow_step,
    Kind.ZERO_GRAD: _zero_grad,
    Kind.WEIGHT_WRITE: _weight_write,
    Kind.CACHE_CLEAR: _cache_clear,
    Kind.SAVE: _save,
    Kind.LOAD: _load,
    Kind.ITERATION_END: _iteration_end,
    Kind.PROGRAM_END: _iteration_end,
}
