"""What unknown things are, by how the code uses them."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from amp_audit.records import replace
from amp_audit.state import get
from amp_audit.static.binding.project import External
from amp_audit.static.source import ir
from amp_audit.static.source.names import MOST_NAMES, is_scheduler
from amp_audit.static.source.traverse import last_word
from amp_audit.static.walking.hot import STEPPED
from amp_audit.static.walking.values import (
    Func,
    Symbol,
    Value,
)
from amp_audit.static.walking.world import World

if TYPE_CHECKING:
    from amp_audit.static.walking.calls import Caller

OWNING = frozenset({"parameters", "named_parameters", "buffers", "trainable_parameters"})
OPTIMIZER_NAME = re.compile(r"optim|^opt$|^opt_|_opt$|^[dg]_opt|opt_[dg]$", re.IGNORECASE)
_API = frozenset(
    {"scale", "unscale_", "step", "update", "get_scale", "is_enabled", "state_dict", "load_state_dict"}
    | {f"{verb}_{what}" for verb in ("get", "set") for what in ("growth_factor", "backoff_factor", "growth_interval")}
)
"""The methods of torch's GradScaler. What has others as well is a wrapper around one, or scales in its own way."""
_OF_MODELS = OWNING | {"train", "eval"}
_AVERAGE_NAME = re.compile(r"(^|_)ema(_|$)|^EMA|EMA$|(^|_)swa_model$|moving_?average", re.IGNORECASE)
_AVERAGING = frozenset({"update", "update_parameters", "step", "update_ema"})
_MAKER = re.compile(
    r"^((create|build|make|get|init|define|load|new)_?\w*(model|net|network|encoder|decoder|generator|discriminator)s?"
    r"|(create|build|make|init|define|new)_?\w*(optim|optimizer|scheduler|scaler)s?"
    r"|(create|build|make|new)|(magic)?mock)$",
    re.IGNORECASE,
)
"""Of optimizers and scalers, which are there once, ``get`` gives the same one again."""
SCALER_NAME = re.compile(r"scaler$|^scaler|grad_scaler", re.IGNORECASE)


class Ducks:
    """Recognises scalers, optimizers and models that were built out of sight."""

    def __init__(self, walker: Caller) -> None:
        self.walker = walker
        self.stepped: set[str] = set()  # keys of symbols that a scaler stepped: optimizers

    def methods_used(self, symbol: Symbol, world: World) -> frozenset[str]:
        """What the code calls on a thing: in the file at hand or, where that has no such name, in a caller's."""
        text, asked = symbol.text, None
        for frame in reversed(world.frames) if text else ():
            if frame.module is not asked:
                asked = frame.module
                found = self.walker.heat.methods(asked).get(text)
                if found is not None:
                    return found
        return frozenset()

    def is_scaler(self, symbol: Symbol, world: World) -> bool:
        return _acts_as_scaler(self.methods_used(symbol, world), symbol.text)

    def holds_scaler(self, symbol: Symbol, world: World) -> bool:
        """Whether something has a scaler by which the code itself unscales: its own ``step`` goes through it."""
        return self.uses_scaler_of(symbol.text, frozenset({"unscale_"}), world)

    def uses_scaler_of(self, text: str, by: frozenset[str], world: World) -> bool:
        methods = self.walker.heat.methods(world.frame.module)
        names = (f"{text}.{name}" for name in ("scaler", "grad_scaler"))
        return bool(text) and any(not by.isdisjoint(methods.get(name, ())) for name in names)

    def is_optimizer(self, symbol: Symbol, world: World) -> bool:
        acts = _acts_as_optimizer(self.methods_used(symbol, world), symbol.text)
        if acts is None:
            acts = symbol.key in self.stepped
        return acts and not self.is_model(symbol, world)

    def is_model(self, symbol: Symbol, world: World) -> bool:
        handed = symbol.param and symbol.key.endswith(")")  # itself, not something in it
        if handed and get(world.state.owners, symbol.key) is not None:
            return True  # an optimizer has its parameters
        used = self.methods_used(symbol, world)
        if "unscale_" in used:
            return False
        return not used.isdisjoint(_OF_MODELS) or self.walker.declared.is_model(symbol)

    def whole(self, part: Symbol, world: World) -> Symbol:
        """The model that a part of one (``model.encoder``) belongs to: a loss of it leads back to all its parts."""
        key, _, name = part.key.rpartition(".")
        text, _, called = part.text.rpartition(".")
        if not key or not text or called != name:
            return part
        above = replace(part, key=key, text=text)
        return self.whole(above, world) if self.is_model(above, world) else part


@functools.lru_cache(maxsize=MOST_NAMES)
def _acts_as_scaler(used: frozenset[str], text: str) -> bool:
    if any(name not in _API and not name.startswith("_") for name in used):
        return False
    if "unscale_" in used or {"scale", "step"} <= used or {"scale", "update"} <= used:
        return True
    return bool(SCALER_NAME.search(text.rpartition(".")[2])) and bool(used & {"scale", "step", "update"})


@functools.lru_cache(maxsize=MOST_NAMES)
def _acts_as_optimizer(used: frozenset[str], text: str) -> bool | None:
    """None: if a scaler steps it."""
    name = text.rpartition(".")[2]
    if is_scheduler(name) and "zero_grad" not in used:  # whatever made it may have made an optimizer too
        return False
    return ("zero_grad" in used and not used.isdisjoint(("step", STEPPED))) or bool(OPTIMIZER_NAME.search(name)) or None


def builds(callee: Value, node: ir.Call) -> bool:
    """Whether code that is not followed is called a maker of models or optimizers: each call of it makes another."""
    if isinstance(callee, External):
        return _is_maker(callee.dotted.rpartition(".")[2])
    return _is_maker(callee.function.name if isinstance(callee, Func) else last_word(node.func))


@functools.lru_cache(maxsize=MOST_NAMES)
def _is_maker(name: str) -> bool:
    return _MAKER.search(name) is not None


def is_average(name: str, method: str) -> bool:
    """Whether a method of something of this name advances a moving average of weights."""
    return method in _AVERAGING and bool(_AVERAGE_NAME.search(name))


def is_averaged_model(symbol: Symbol) -> bool:
    """Whether it is an average that ``torch.optim.swa_utils`` keeps, whatever it is called."""
    return symbol.key.startswith("torch.optim.swa_utils.AveragedModel(")


def tail(symbol: Symbol) -> str:
    return symbol.text.rpartition(".")[2]


def tail_of(value: Value) -> str:
    return tail(value) if isinstance(value, Symbol) else "scaler"
