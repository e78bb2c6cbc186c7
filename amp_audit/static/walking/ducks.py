"""What unknown things are, by how the code uses them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from amp_audit.records import replace
from amp_audit.state import get
from amp_audit.static.binding.project import External
from amp_audit.static.source import ir
from amp_audit.static.source.names import is_scheduler
from amp_audit.static.source.traverse import last_word
from amp_audit.static.walking.hot import STEPPED
from amp_audit.static.walking.values import (
    Func,
    Symbol,
    Value,
    key_of,
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
        self._scalers: dict[tuple[str, str], bool] = {}
        self._models: dict[tuple[str, str], bool] = {}

    def methods_used(self, symbol: Symbol, world: World) -> frozenset[str]:
        """What the code calls on a thing: in the file at hand or, where that has no such name, in a caller's."""
        module = self._using(symbol, world)
        return self.walker.heat.methods(module).get(symbol.text, frozenset()) if symbol.text else frozenset()

    def _using(self, symbol: Symbol, world: World) -> ir.Module:
        for frame in reversed(world.frames):
            if symbol.text in self.walker.heat.methods(frame.module):
                return frame.module
        return world.frame.module

    def is_scaler(self, symbol: Symbol, world: World) -> bool:
        key = (self._using(symbol, world).path, symbol.text)
        found = self._scalers.get(key)
        if found is None:
            found = self._scalers[key] = self._acts_as_scaler(symbol, world)
        return found

    def _acts_as_scaler(self, symbol: Symbol, world: World) -> bool:
        used = self.methods_used(symbol, world)
        if any(name not in _API and not name.startswith("_") for name in used):
            return False
        if "unscale_" in used or {"scale", "step"} <= used or {"scale", "update"} <= used:
            return True
        return bool(SCALER_NAME.search(tail(symbol))) and bool(used & {"scale", "step", "update"})

    def holds_scaler(self, symbol: Symbol, world: World) -> bool:
        """Whether something has a scaler by which the code itself unscales: its own ``step`` goes through it."""
        return self.uses_scaler_of(symbol.text, frozenset({"unscale_"}), world)

    def uses_scaler_of(self, text: str, by: frozenset[str], world: World) -> bool:
        methods = self.walker.heat.methods(world.frame.module)
        names = (f"{text}.{name}" for name in ("scaler", "grad_scaler"))
        return bool(text) and any(not by.isdisjoint(methods.get(name, ())) for name in names)

    def is_optimizer(self, symbol: Symbol, world: World) -> bool:
        used = self.methods_used(symbol, world)
        if self.is_model(symbol, world):
            return False
        if is_scheduler(tail(symbol)) and "zero_grad" not in used:  # whatever made it may have made an optimizer too
            return False
        named = bool(OPTIMIZER_NAME.search(tail(symbol)))
        return symbol.key in self.stepped or ("zero_grad" in used and not used.isdisjoint(("step", STEPPED))) or named

    def is_model(self, symbol: Symbol, world: World) -> bool:
        handed = symbol.param and symbol.key.endswith(")")  # itself, not something in it
        if handed and get(world.state.owners, symbol.key) is not None:
            return True  # an optimizer has its parameters
        key = (self._using(symbol, world).path, symbol.text)
        found = self._models.get(key)
        if found is None:
            used = self.methods_used(symbol, world)
            found = self._models[key] = bool(used & (OWNING | {"train", "eval"})) and "unscale_" not in used
        return found

    def whole(self, part: Symbol, world: World) -> Symbol:
        """The model that a part of one (``model.encoder``) belongs to: a loss of it leads back to all its parts."""
        key, _, name = part.key.rpartition(".")
        text = part.text.rpartition(".")[0]
        above = replace(part, key=key, text=text)
        if not key or not text or part.text.rpartition(".")[2] != name or not self.is_model(above, world):
            return part
        return self.whole(above, world)


def builds(callee: Value, node: ir.Call) -> bool:
    """Whether code that is not followed is called a maker of models or optimizers: each call of it makes another."""
    known = isinstance(callee, (External, Func))
    return bool(_MAKER.search(key_of(callee).rpartition(":")[2].rpartition(".")[2] if known else last_word(node.func)))


def is_average(name: str, method: str) -> bool:
    """Whether a method of something of this name advances a moving average of weights."""
    return method in _AVERAGING and bool(_AVERAGE_NAME.search(name))


def is_averaged_model(symbol: Symbol) -> bool:
    """Whether it is an average that ``torch.optim.swa_utils`` keeps, whatever it is called."""
    return symbol.key.startswith("torch.optim.swa_utils.AveragedModel(")


def tail(symbol: Symbol) -> str:
    return symbol.text.rpartition(".")[2] if symbol.text else ""


def tail_of(value: Value) -> str:
    return tail(value) if isinstance(value, Symbol) else "scaler"
