"""Facts of a call site, for the ``when`` conditions of ``call`` detectors; each is computed when first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from amp_audit.static.binding.origins import Origins
from amp_audit.static.binding.project import Project
from amp_audit.static.binding.signatures import argument
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import definitions, last_word, names_in, parts, statements
from amp_audit.static.spots import devices, switches
from amp_audit.static.spots.devices import is_disabled
from amp_audit.static.spots.frozen import is_frozen
from amp_audit.static.spots.gates import is_gated
from amp_audit.static.spots.sites import Site

_LOW_PRECISION = frozenset({"autocast", "GradScaler", "bfloat16", "float16", "half", "mixed_precision"})
_LIGHTNING_2 = (2, 0)
_LIGHTNING_1_ALONE = frozenset(
    {"gpus", "tpu_cores", "ipus", "num_processes", "auto_select_gpus", "checkpoint_callback"}
)
_LIGHTNING_1_ALONE |= {"early_stop_callback", "progress_bar_refresh_rate", "weights_summary", "resume_from_checkpoint"}
_LIGHTNING_1_ALONE |= {"distributed_backend", "weights_save_path", "auto_lr_find", "track_grad_norm", "log_gpu_memory"}
_LIGHTNING_1_ALONE |= {"auto_scale_batch_size", "multiple_trainloader_mode", "terminate_on_nan", "replace_sampler_ddp"}
"""What the Trainer of Lightning 2 takes no more: a TypeError there."""
_TRANSFORMERS_5 = (5, 0)
_SUSPENDING_ON_PURPOSE = ("contextmanager", "fixture", "hookimpl", "hookwrapper")


class Facts(Mapping[str, object]):
    """The facts of one site.

    ``gated``: whether only some versions of torch come here. ``bare``: a decorator without parentheses.
    ``decorates``: function | class | generator | none. ``result``: dropped (nobody looks at it), unused (bound to a
    name or attribute that nothing reads), used. ``applied_to``: what the result is called with: tensor | module |
    other | none. ``suspends``: whether a generator yields inside the ``with`` that the call is the context of.
    ``disabled``: whether a literal turns it off. ``low_precision``: whether the module has a name of mixed precision.
    ``disables_inside``: whether a model of the project turns autocast off in its forward, in a module that trains under
    it and leaves ``backward_pass_autocast`` alone.
    ``old_lightning``: whether the project's pins let no Lightning 2 in, or the call itself gives what that takes no
    more; ``old_transformers``: whether they let no transformers 5 in.
    ``scaler``: whether the module has a GradScaler. ``xla``: whether it imports torch_xla whatever runs.
    ``frozen``: whether a decorator reads `enabled` at import, and code that runs later changes it.
    ``device``: what the module chooses from while it runs, where nothing at the place follows that choice: accelerator
    (CUDA or another one), cpu (CUDA or the CPU, which it minds elsewhere too), fallback (the choice is all); given
    where it chooses nothing and another region of it is one of the device that it is given; else followed or fixed.
    ``scaling``: how a scaler goes with the regions beside it (``switches.scaling``): apart | always | tied.
    ``sure`` is False once a fact that was asked for rests on a name only.
    """

    def __init__(self, site: Site, project: Project, origins: Origins, choices: devices.Choices) -> None:
        self.site = site
        self.choices = choices
        self.project = project
        self.origins = origins
        self.sure = True

    def __getitem__(self, key: str) -> object:
        return _FACTS[key](self)

    def __iter__(self) -> Iterator[str]:
        return iter(_FACTS)

    def __len__(self) -> int:
        return len(_FACTS)

    def decorates(self) -> str:
        node = self.site.decorated
        if node is None:
            return "none"
        if isinstance(node, ir.Class):
            return "class"
        return "generator" if node.is_generator else "function"

    def result(self) -> str:
        holder = self.site.holder
        if isinstance(holder, ir.Evaluate):
            return "dropped"
        if isinstance(holder, ir.Assign) and all(self._is_never_read(target) for target in holder.targets):
            return "unused"
        return "used"

    def _is_never_read(self, target: ir.Expr) -> bool:
        if isinstance(target, ir.Attr) and self.origins.is_self(target.base, self.site.where):
            read = any(_reads_attribute(module, target.name) for module in self.project.modules.values())
            return not read and not self.project.mentioned_elsewhere(target.name)
        scope = self.site.where.scope
        if isinstance(target, ir.Name) and scope is not None and target.id not in scope.names.outer:
            return not _reads_name(scope.function.body, target.id)
        if isinstance(target, ir.Name) and scope is None and self.site.where.cls is None:
            read = any(_mentions(module, target.id) for module in self.project.modules.values())
            return not read and not self.project.mentioned_elsewhere(target.id)
        return False

    def applied_to(self) -> str:
        if not self.site.applied:
            return "none"
        expr = self.site.applied[0].value
        kinds, sure = self.origins.kinds(expr, self.site.where)
        if kinds == {"module"}:
            return "module"
        if kinds or not isinstance(expr, ir.Call):
            return "other"
        self.sure = self.sure and sure
        return "tensor" if self._computes(expr) else "other"

    def _computes(self, call: ir.Call) -> bool:
        """Whether a call looks like a forward pass: not something that makes or wraps a function."""
        name = self.project.qualified(self.site.where.module, call.func, self.site.where.scope)
        if name is not None:
            return name.startswith(("torch.nn.functional.", "torch.mm", "torch.matmul"))
        return isinstance(call.func, ir.Name) and bool(call.args) and not isinstance(call.args[0].value, ir.Lambda)

    def _enabled(self) -> ir.Expr | None:
        """The argument of that name."""
        name = self.project.called(self.site.where.module, self.site.call.func, self.site.where.scope)
        given = argument(self.site.call, "enabled", name or "")
        return given.value if isinstance(given, ir.Arg) else None

    def disables_inside(self) -> bool:
        trains = {"backward", "autocast"} <= self.site.where.module.words
        modules = self.project.modules.values()
        if not trains or any("backward_pass_autocast" in module.words for module in modules):
            return False
        functions = (f for module in modules if "autocast" in module.words for f, _ in definitions(module.body))
        return any(f.name == "forward" and _turns_off(f) for f in functions)

    def scaler(self) -> bool:
        return not self.site.where.module.words.isdisjoint(("GradScaler", "ShardedGradScaler"))

    def xla(self) -> bool:
        imports = (node for node in self.site.where.module.body if isinstance(node, ir.Import))
        return any(target.partition(".")[0] == "torch_xla" for node in imports for _, target in node.bindings)

    def frozen(self) -> bool:
        return is_frozen(self.site, self._enabled(), self.project)

    def device(self) -> str:
        choice = self.choices.of(self.site.where.module)
        if not choice.others and not choice.given:
            return "fixed"
        follows = devices.is_followed(self.site.gates, self._enabled(), self.site.where, self.origins)
        if follows:
            return "followed"
        if not choice.others:
            flagged = devices.may_be_followed(self.site.gates, self._enabled(), self.site.where, self.origins)
            return "fixed" if flagged else "given"
        return "accelerator" if choice.others != {"cpu"} else "cpu" if choice.minded else "fallback"

    def scaling(self) -> str:
        name = self.project.called(self.site.where.module, self.site.call.func, self.site.where.scope)
        return switches.scaling(self.site.call, name or "", self.site.where, self.project, self.origins)

    def old_lightning(self) -> bool:
        given = {arg.keyword for arg in self.site.call.args}
        return (self.project.newest.lightning or _LIGHTNING_2) < _LIGHTNING_2 or not given.isdisjoint(
            _LIGHTNING_1_ALONE
        )

    def suspends(self) -> bool:
        region, scope = self.site.entered, self.site.where.scope
        if region is None or scope is None or not scope.function.is_generator:
            return False
        if any(_is_made_to_suspend(decorator) for decorator in scope.function.decorators):
            return False
        return any(isinstance(part, ir.Yield) for part in parts(region.body))


def _turns_off(function: ir.Function) -> bool:
    """Whether a function enters a region that a literal turns off."""
    calls = (part for part in parts(function.body) if isinstance(part, ir.Call))
    return any(is_disabled(call) and "autocast" in names_in(call.func) for call in calls)


def uses_low_precision(module: ir.Module) -> bool:
    """Whether a module has a name of mixed precision in it."""
    return not _LOW_PRECISION.isdisjoint(module.words)


def _is_made_to_suspend(decorator: ir.Expr) -> bool:
    func = decorator.func if isinstance(decorator, ir.Call) else decorator
    return last_word(func).endswith(_SUSPENDING_ON_PURPOSE)


def _everything(body: Sequence[ir.Stmt]) -> Iterator[ir.Expr]:
    """All expressions in a body, those of nested definitions and lambdas too."""
    for part in parts(body, into=True):
        yield part
        if isinstance(part, ir.Lambda):
            yield from _everything(part.function.body)


def _targets(body: Sequence[ir.Stmt]) -> Iterator[ir.Expr]:
    for node in statements(body, into=True):
        if isinstance(node, (ir.Assign, ir.Delete)):
            yield from node.targets


def _reads_attribute(module: ir.Module, name: str) -> bool:
    """Whether an attribute of this name is read anywhere, be it through getattr with a literal."""
    if name not in module.words:
        return any(isinstance(part, ir.Const) and part.value == name for part in _everything(module.body))
    written = {target.at for target in _targets(module.body) if isinstance(target, ir.Attr)}
    return any(
        (isinstance(part, ir.Attr) and part.name == name and part.at not in written)
        or (isinstance(part, ir.Const) and part.value == name)
        for part in _everything(module.body)
    )


def _reads_name(body: Sequence[ir.Stmt], name: str) -> bool:
    written = {target.at for target in _targets(body) if isinstance(target, ir.Name)}
    return any(
        isinstance(part, ir.Name) and ((part.id == name and part.at not in written) or part.id in ("locals", "vars"))
        for part in _everything(body)
    )


def _mentions(module: ir.Module, name: str) -> bool:
    """Whether a module-level name is read in a module, as a name, an attribute, or by an import of it."""
    if name not in module.words:
        return False
    imported = any(
        target.rpartition(".")[2] == name or local == "*" for node in module.imports for local, target in node.bindings
    )
    other = any(
        (isinstance(part, ir.Attr) and part.name == name) or (isinstance(part, ir.Const) and part.value == name)
        for part in _everything(module.body)
    )
    return imported or other or _reads_name(module.body, name)


_FACTS: dict[str, Callable[[Facts], object]] = {
    "disabled": lambda facts: is_disabled(facts.site.call),
    "low_precision": lambda facts: uses_low_precision(facts.site.where.module),
    "gated": lambda facts: is_gated(facts.site.gates, facts.site.where, facts.project),
    "bare": lambda facts: facts.site.bare,
    "disables_inside": Facts.disables_inside,
    "old_lightning": Facts.old_lightning,
    "old_transformers": lambda facts: (facts.project.newest.transformers or _TRANSFORMERS_5) < _TRANSFORMERS_5,
    "scaler": Facts.scaler,
    "xla": Facts.xla,
    "frozen": Facts.frozen,
    "device": Facts.device,
    "decorates": Facts.decorates,
    "result": Facts.result,
    "applied_to": Facts.applied_to,
    "scaling": Facts.scaling,
    "suspends": Facts.suspends,
}
FACT_NAMES = frozenset(_FACTS)
