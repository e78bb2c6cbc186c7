"""Frameworks that scale the loss themselves: AMP802, AMP804, AMP805, AMP806."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from amp_audit.model import Confidence, Severity
from amp_audit.records import record
from amp_audit.rulebook import Detector, Rule
from amp_audit.static.binding.dicts import entries, is_dict
from amp_audit.static.binding.origins import Origin, Origins, Where
from amp_audit.static.binding.project import ClassRef, Project, Scope
from amp_audit.static.binding.signatures import SCALERS, argument
from amp_audit.static.raw import RawFinding, RawStep
from amp_audit.static.source import ir
from amp_audit.static.source.conditions import NO_FACTS, exclude, facts_at
from amp_audit.static.source.literals import is_literally
from amp_audit.static.source.names import BORN_IN_BFLOAT16
from amp_audit.static.source.traverse import dotted_text, last_word, parts, statements, walk
from amp_audit.static.spots.checks import ACCELERATOR, mixed_precision
from amp_audit.static.spots.configs import in_json, lookup
from amp_audit.static.spots.halved import halves, halving, unwrapped
from amp_audit.static.spots.handed import Space, reached
from amp_audit.static.spots.prepared import Prepared, identities
from amp_audit.static.spots.spaces import CLIPS, calls, method, spaces
from amp_audit.static.spots.upcast import is_treated, is_treated_where_made

MODULE = "lightning.pytorch.LightningModule"
TRAINER = "lightning.pytorch.Trainer"
HALF_WORDS = frozenset({16, "16", "16-mixed"})
_FLOAT32_WORDS = frozenset({None, 32, "32", "32-true"})
_EVALUATION = ("validation", "test", "predict", "on_validation", "on_test", "on_predict")


# Lightning


@record(frozen=True, slots=True)
class _Precision:
    """In which precision the Trainers of a project train: ``known`` words (None: not given), and whether one is not a
    literal. ``clips``: whether one of them clips gradients itself."""

    known: frozenset[object]
    is_unknown: bool
    clips: bool

    @property
    def confidence(self) -> Confidence | None:
        """How sure it is that the loss is scaled; None where it is not."""
        if self.known & HALF_WORDS:
            return Confidence.HIGH
        return Confidence.MEDIUM if self.is_unknown else None


def _precision(module: ir.Module, project: Project, origins: Origins) -> _Precision:
    """What the Trainers say that a module makes itself; of a module that makes none, those of the project."""
    own_ones = list(_trainers(module, project, origins))
    found = own_ones or [each for other in project.modules.values() for each in _trainers(other, project, origins)]
    known: set[object] = set()
    is_unknown = clips = False
    for call, where in found:
        given = argument(call, "precision", TRAINER)
        values = origins.of(given.value, where) if isinstance(given, ir.Arg) else []
        literals = {o.expr.value for o in values if isinstance(o.expr, ir.Const)}
        known |= {None} if given is None else literals
        is_unknown = is_unknown or (given is not None and len(literals) != len(values or (None,)))
        clips = clips or argument(call, "gradient_clip_val", TRAINER) is not None
    return _Precision(frozenset(known), is_unknown, clips)


def _trainers(module: ir.Module, project: Project, origins: Origins) -> Iterator[tuple[ir.Call, Where]]:
    """The calls in a module that make a Trainer."""
    if "Trainer" in module.words:
        for where, body in spaces(module):
            for call in calls(body):
                if project.called(module, call.func, where.scope) == TRAINER:
                    yield origins.unpacked(call, where), where


def _lightning_classes(module: ir.Module, project: Project) -> Iterator[ClassRef]:
    if not module.words & {"LightningModule", "lightning", "pytorch_lightning"}:
        return
    for node in statements(module.body, into=True):
        if isinstance(node, ir.Class) and project.is_subclass(ref := ClassRef(module, node), MODULE):
            yield ref


def _is_manual(ref: ClassRef, project: Project, origins: Origins) -> bool:
    return any(
        isinstance(origin.expr, ir.Const) and origin.expr.value is False
        for owner in project.mro(ref)
        for origin in origins.attributes(owner).get("automatic_optimization", ())
    )


def _methods(ref: ClassRef) -> Iterator[tuple[Where, ir.Function]]:
    for node in ref.cls.body:
        if isinstance(node, ir.Function):
            yield Where(ref.module, Scope(node), ref), node


def lightning_manual(
    rule: Rule, detector: Detector, module: ir.Module, project: Project, origins: Origins
) -> Iterator[RawFinding]:
    """AMP804: what manual optimization does to gradients that Lightning has scaled; and fused optimizers it clips."""
    classes = list(_lightning_classes(module, project))
    precision = _precision(module, project, origins) if classes else None
    if precision is None or precision.confidence is None:
        return
    assumed = "" if precision.confidence is Confidence.HIGH else " (if precision is 16-mixed)"
    for ref in classes:
        is_manual = _is_manual(ref, project, origins)
        for where, function in _methods(ref):
            for at, message in _misused(ref, where, function, is_manual, precision, project):
                yield RawFinding(rule, module.path, at, message + assumed, precision.confidence, detector.severity)


def _misused(
    ref: ClassRef, where: Where, function: ir.Function, is_manual: bool, precision: _Precision, project: Project
) -> Iterator[tuple[int, str]]:
    by_hand = "unscale_" in ref.cls.words
    for call in calls(function.body):
        name = project.called(where.module, call.func, where.scope)
        is_own = isinstance(call.func, ir.Attr) and Origins.is_self(call.func.base, where)
        if is_manual and not by_hand and (name in CLIPS or (is_own and method(call) == "clip_gradients")):
            yield call.at, "with manual optimization the gradients here still carry Lightning's loss scale"
        elif is_manual and method(call) == "backward" and name is None and not is_own and not by_hand:
            yield call.at, "backward past manual_backward: the loss is not scaled, yet the step unscales it"
        elif function.name == "configure_optimizers" and precision.clips and _is_fused(call, name):
            yield call.at, "Lightning refuses to clip for a fused optimizer under 16-mixed, with a RuntimeError"


def _is_fused(call: ir.Call, name: str | None) -> bool:
    fused = any(arg.keyword == "fused" and is_literally(arg.value, True) for arg in call.args)
    return fused and name is not None and name.startswith("torch.optim.")


# AMP806


def double_scaling(
    rule: Rule, detector: Detector, module: ir.Module, project: Project, origins: Origins
) -> Iterator[RawFinding]:
    """A scaler of one's own beside the framework's, and float16 where the framework was told to train in float32."""
    look = _Look(rule, detector, module, project, origins)
    classes = list(_lightning_classes(module, project))
    if classes:
        precision = _precision(module, project, origins)
        for ref in classes:
            yield from look.in_lightning(ref, precision)
    yield from look.in_trainers()
    yield from look.beside_accelerators()
    yield from look.in_configs()


@record(frozen=True, slots=True)
class _Look:
    rule: Rule
    detector: Detector
    module: ir.Module
    project: Project
    origins: Origins

    def finding(self, at: int, message: str, confidence: Confidence, *related: RawStep) -> RawFinding:
        return RawFinding(self.rule, self.module.path, at, message, confidence, self.detector.severity, related)

    def called(self, call: ir.Call, where: Where) -> str | None:
        return self.project.called(self.module, call.func, where.scope)

    def in_lightning(self, ref: ClassRef, precision: _Precision) -> Iterator[RawFinding]:
        for where, function in _methods(ref):
            for call in calls(function.body):
                if self.called(call, where) in SCALERS and precision.known & HALF_WORDS:
                    message = "the Trainer scales the loss already: a second GradScaler scales it twice"
                    yield self.finding(call.at, message, Confidence.HIGH)
            only_float32 = bool(precision.known) and precision.known <= _FLOAT32_WORDS and not precision.is_unknown
            if only_float32 and not _is_manual(ref, self.project, self.origins) and self._trains(ref, function):
                yield from self._float16_regions(where, function)

    def _trains(self, ref: ClassRef, function: ir.Function) -> bool:
        """Whether a method belongs to the training step: it is that, or the training step calls it."""
        step = self.project.methods(ref).get("training_step")
        if step is None or function.name.startswith(_EVALUATION):
            return False
        return function.name == "training_step" or (
            function.name in step[1].words and function.name not in ("log", "forward", "__init__")
        )

    def _float16_regions(self, where: Where, function: ir.Function) -> Iterator[RawFinding]:
        returned = {
            name for node in statements(function.body) if isinstance(node, ir.Return) for name in _names(node.value)
        }
        for node in statements(function.body):
            if not isinstance(node, ir.With):
                continue
            for context, _ in node.items:
                if isinstance(context, ir.Call) and self._is_float16(context, where) and _yields(node.body, returned):
                    message = "float16 in the training step of a Trainer in float32, which does not scale the loss"
                    yield self.finding(context.at, message, Confidence.HIGH)

    def _is_float16(self, call: ir.Call, where: Where) -> bool:
        name = self.called(call, where) or ""
        if name not in ("torch.amp.autocast", "torch.cuda.amp.autocast"):
            return False
        off = argument(call, "enabled", name)
        if isinstance(off, ir.Arg) and not (isinstance(off.value, ir.Const) and off.value.value is True):
            return False
        device = argument(call, "device_type", name)
        if name == "torch.amp.autocast" and not (
            isinstance(device, ir.Arg) and isinstance(device.value, ir.Const) and device.value.value == "cuda"
        ):
            return False
        dtype = argument(call, "dtype", name)
        if dtype is None:
            return True
        return isinstance(dtype, ir.Arg) and (
            self.project.qualified(self.module, dtype.value, where.scope) == "torch.float16"
        )

    def in_trainers(self) -> Iterator[RawFinding]:
        """A scaler inside a subclass of the Trainer of transformers that trains with fp16."""
        if self.module.words.isdisjoint(_TRAINERS):
            return
        for node in statements(self.module.body, into=True):
            if not isinstance(node, ir.Class) or not self._is_hf_trainer(ClassRef(self.module, node)):
                continue
            arguments = _fp16_arguments(self.project, self.origins)
            for where, function in _methods(ClassRef(self.module, node)):
                for call in calls(function.body):
                    if self.called(call, where) in SCALERS and arguments is not None:
                        message = "the Trainer scales the loss already: a second GradScaler scales it twice"
                        yield self.finding(call.at, message, Confidence.HIGH, arguments)

    def _is_hf_trainer(self, ref: ClassRef) -> bool:
        return any(self.project.is_subclass(ref, f"transformers.{name}") for name in ("Trainer", "Seq2SeqTrainer"))

    def beside_accelerators(self) -> Iterator[RawFinding]:
        """``scaler.scale`` in a body where an Accelerator with fp16 prepares what is trained."""
        if "Accelerator" not in self.module.words or "prepare" not in self.module.words:
            return
        for where, body in spaces(self.module):
            accelerators = [made for call in calls(body) for made in self._prepares(call, where)]
            modes = {mixed_precision(call, at, self.origins) for call, at in accelerators}
            if not accelerators or not modes <= {"fp16", None}:
                continue
            made = [facts_at(body, call.at) for call in calls(body) if method(call) == "prepare"]
            for call in calls(body):
                own = facts_at(body, call.at) if _scales(call, where, self.origins) else None
                if own is not None and not all(exclude(own, facts) for facts in made):
                    sure = Confidence.HIGH if modes == {"fp16"} else Confidence.MEDIUM
                    message = "the Accelerator scales the loss already: a second GradScaler scales it twice"
                    yield self.finding(call.at, message, sure)

    def in_configs(self) -> Iterator[RawFinding]:
        """An optimizer wrapper of mmengine that scales the loss of a run in bfloat16."""
        if self.module.words.isdisjoint(("optim_wrapper", "AmpOptimWrapper")):
            return
        for part in parts(self.module.body, into=True):
            said = {key: value.value for key, value in _wrapper(part) if isinstance(value, ir.Const)}
            scales = said.get("loss_scale") not in (None, False, 1)
            if said.get("type") == "AmpOptimWrapper" and said.get("dtype") == "bfloat16" and scales:
                message = "the wrapper scales the loss of a run in bfloat16, which has the range of float32"
                yield replace(self.finding(part.at, message, Confidence.HIGH), severity=Severity.WARNING)

    def _prepares(self, call: ir.Call, where: Where) -> list[tuple[ir.Call, Where]]:
        if method(call) != "prepare" or not isinstance(call.func, ir.Attr):
            return []
        return self.origins.constructors(call.func.base, where, ACCELERATOR) or []


def _wrapper(expr: ir.Expr) -> Iterable[tuple[str, ir.Expr]]:
    """What an optimizer wrapper is told, in a config or by a call of its class."""
    if isinstance(expr, ir.Call) and last_word(expr.func) == "AmpOptimWrapper":
        given = [(arg.keyword, arg.value) for arg in expr.args if arg.keyword is not None]
        return [("type", ir.Const(expr.at, "AmpOptimWrapper")), *given]
    return entries(expr)


def _names(expr: ir.Expr | None) -> set[str]:
    return {part.id for part in walk(expr) if isinstance(part, ir.Name)} if expr is not None else set()


def _yields(body: Sequence[ir.Stmt], returned: set[str]) -> bool:
    """Whether what a function returns is computed straight in a region's body, not under a ``with`` in it."""
    for node in body:
        if isinstance(node, ir.Return):
            return True
        if isinstance(node, (ir.Assign, ir.Augment)):
            targets = node.targets if isinstance(node, ir.Assign) else (node.target,)
            if any(_names(target) & returned for target in targets):
                return True
        if isinstance(node, (ir.If, ir.For)) and (_yields(node.body, returned) or _yields(node.orelse, returned)):
            return True
    return False


# AMP802

_ARGUMENTS = ("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig", "DPOConfig")
_TRAINERS = ("Trainer", "Seq2SeqTrainer", "SFTTrainer", "DPOTrainer")
_HALVES = frozenset({"torch.float16", "float16", "fp16", "half"})


def _fp16_arguments(project: Project, origins: Origins) -> RawStep | None:
    """Where a project says ``fp16=True`` to a Trainer."""
    for module in project.modules.values():
        if "fp16" not in module.words and not module.words & set(_ARGUMENTS):
            continue
        for where, body in spaces(module):
            for call in calls(body):
                name = project.called(module, call.func, where.scope) or ""
                is_one = name.rpartition(".")[2] in _ARGUMENTS and name.startswith(("transformers.", "trl."))
                if is_one and _asks_for_fp16(call, where, origins):
                    return RawStep(module.path, call.at, "trains with fp16")
    return None


def _asks_for_fp16(call: ir.Call, where: Where, origins: Origins, words: Sequence[str] = ("fp16",)) -> bool:
    return any(arg.keyword in words and is_literally(arg.value, True) for arg in origins.unpacked(call, where).args)


def half_loaded(
    rule: Rule, detector: Detector, module: ir.Module, project: Project, origins: Origins
) -> Iterator[RawFinding]:
    """A model loaded in float16 that is handed, as it is, to a Trainer or an Accelerator which scales."""
    handing = module.words & {"prepare", *_TRAINERS}
    if not handing or all("from_pretrained" not in each.words for each in project.modules.values()):
        return
    for call, where, model, step in _handed_over(module, project, origins):
        if is_treated(model, _body(where)):
            continue
        made = [o for o in origins.of(model, where) if not _is_rebound(o, call)]
        if any(is_treated_where_made(o.expr, _body(o.where)) for o in made if o.expr is not None):
            continue
        loads = [half for o in made if (half := _half_from(o, call, project, origins)) is not None]
        if loads and len(loads) == len(made):
            yield RawFinding(rule, made[0].where.module.path, loads[0].at, detector.message, related=(step,))


def _body(where: Where) -> Sequence[ir.Stmt]:
    return where.scope.function.body if where.scope is not None else where.module.body


def _half_from(
    made: Origin, handed: ir.Call, project: Project, origins: Origins, seen: tuple[ir.Expr, ...] = ()
) -> ir.Expr | None:
    """From which expression on a pretrained model is float16 when it is ``handed`` over; None if it is not seen.
    ``seen`` are the names gone through: two may be bound to each other in turn.
    """
    expr = unwrapped(made.expr) if made.expr is not None else None
    if expr is None or _loads_half(expr, made.where, project, origins):
        return expr
    if isinstance(expr, ir.Name) and expr is not made.expr and not is_treated(expr, _body(made.where)):
        if any(expr is one for one in seen):
            return None
        seen = (*seen, expr)
        found = [_half_from(before, handed, project, origins, seen) for before in origins.of(expr, made.where)]
        return found[0] if found and None not in found else None
    loads = [part for part in walk(expr) if isinstance(part, ir.Call) and method(part) == "from_pretrained"]
    if loads:
        body = _body(made.where)
        return halving(loads[0], body, handed.at if any(part is handed for part in parts(body)) else None)
    if not isinstance(expr, ir.Call) or not isinstance(expr.func, ir.Attr) or not halves(expr):
        return None
    before = [origin.expr for origin in origins.of(expr.func.base, made.where) if origin.expr is not None]
    return expr if any("from_pretrained" in dotted_text(each) for each in before) else None


def _handed_over(
    module: ir.Module, project: Project, origins: Origins, words: Sequence[str] = ("fp16",)
) -> Iterator[tuple[ir.Call, Where, ir.Expr, RawStep]]:
    """The calls by which a Trainer or an Accelerator is given a model that it trains in float16; ``words`` are the
    arguments that say so to a Trainer.
    """
    for where, body in spaces(module):
        for call in calls(body):
            model, step = _trained(call, where, module, project, origins, words)
            if model is not None and step is not None:
                yield call, where, model, step


def _is_rebound(origin: Origin, call: ir.Call) -> bool:
    """Whether a value comes from unpacking, as what ``prepare`` returns does under the name it was given."""
    return method(call) == "prepare" and origin.expr is None and origin.param is None


def _trained(
    call: ir.Call, where: Where, module: ir.Module, project: Project, origins: Origins, words: Sequence[str]
) -> tuple[ir.Expr | None, RawStep | None]:
    """The model that a call puts in training under a loss scale, and where that is said."""
    name = project.called(module, call.func, where.scope) or ""
    if name.startswith(("transformers.", "trl.")) and name.rpartition(".")[2] in _TRAINERS:
        if any(arg.keyword in ("peft_config", "model_init") or arg.star for arg in call.args):
            return None, None
        arguments = next((arg.value for arg in call.args if arg.keyword == "args"), None)
        model = next((arg.value for arg in call.args if arg.keyword == "model"), None)
        if model is None and call.args and call.args[0].keyword is None:
            model = call.args[0].value
        for origin in origins.of(arguments, where) if arguments is not None else ():
            if isinstance(origin.expr, ir.Call) and _asks_for_fp16(origin.expr, origin.where, origins, words):
                return model, RawStep(origin.where.module.path, origin.expr.at, "trains with fp16")
    if method(call) == "prepare" and isinstance(call.func, ir.Attr) and call.args and not call.args[0].star:
        made = origins.constructors(call.func.base, where, ACCELERATOR) or []
        if made and all(mixed_precision(each, at, origins) == "fp16" for each, at in made):
            accelerator, at = made[0]
            return call.args[0].value, RawStep(at.module.path, accelerator.at, "trains with mixed_precision fp16")
    return None, None


def _loads_half(call: ir.Expr | None, where: Where, project: Project, origins: Origins) -> bool:
    """``X.from_pretrained(..., torch_dtype=torch.float16)`` without quantization; the same with adapters around it that
    PEFT is told to leave in the dtype of the weights.
    """
    if isinstance(call, ir.Call) and project.called(where.module, call.func, where.scope) == "peft.get_peft_model":
        kept = any(arg.keyword == "autocast_adapter_dtype" and is_literally(arg.value, False) for arg in call.args)
        base = next((arg.value for arg in call.args if arg.keyword in (None, "model") and not arg.star), None)
        made = origins.of(base, where) if kept and base is not None else []
        return bool(made) and all(_loads_half(one.expr, one.where, project, origins) for one in made)
    if not isinstance(call, ir.Call) or method(call) != "from_pretrained":
        return False
    call = origins.unpacked(call, where)
    if any(arg.keyword in ("load_in_8bit", "load_in_4bit", "quantization_config") for arg in call.args):
        return False
    given = next((arg.value for arg in call.args if arg.keyword in ("torch_dtype", "dtype")), None)
    values = origins.of(given, where) if given is not None else []
    words = {word for value in values for word in _dtype_words(value, project, origins)}
    return bool(words) and words <= _HALVES


def _dtype_words(given: Origin, project: Project, origins: Origins) -> Iterator[object]:
    """What a dtype is called: ``torch.float16``, ``"float16"``, ``getattr(torch, "float16")``."""
    expr, where = given.expr, given.where
    if (
        isinstance(expr, ir.Call)
        and isinstance(expr.func, ir.Name)
        and expr.func.id == "getattr"
        and len(expr.args) > 1
    ):
        for name in origins.of(expr.args[1].value, where):
            yield name.expr.value if isinstance(name.expr, ir.Const) else None
    elif expr is not None:
        yield expr.value if isinstance(expr, ir.Const) else project.qualified(where.module, expr, where.scope)


# AMP506


def born_in_bfloat16(
    rule: Rule, detector: Detector, module: ir.Module, project: Project, origins: Origins
) -> Iterator[RawFinding]:
    """A model that was trained in bfloat16, handed to a Trainer or an Accelerator that runs it in float16."""
    if "from_pretrained" not in module.words:
        return
    for _, where, model, step in _handed_over(module, project, origins, ("fp16", "fp16_full_eval")):
        for made in origins.of(model, where):
            name, is_default = _loaded(made, origins)
            if name is not None and BORN_IN_BFLOAT16.search(name):
                sure = Confidence.MEDIUM if is_default else Confidence.HIGH
                message = (
                    f"{name}{', the default,' if is_default else ''} was trained in bfloat16 and is run in float16"
                )
                load = RawStep(made.where.module.path, made.expr.at if made.expr else 0, "it is loaded here")
                yield RawFinding(rule, step.path, step.at, message, sure, detector.severity, (load,))


def _loaded(made: Origin, origins: Origins) -> tuple[str | None, bool]:
    """The name in ``X.from_pretrained("name")``, and whether it is what an option of the command line defaults to."""
    call = made.expr
    if not isinstance(call, ir.Call) or method(call) != "from_pretrained" or not call.args:
        return None, False
    for origin in origins.of(call.args[0].value, made.where):
        if isinstance(origin.expr, ir.Const) and isinstance(origin.expr.value, str):
            return origin.expr.value, origin.assumed
        default = origins.command_line.default_of(origin.expr) if origin.expr is not None else None
        if default is not None:
            return default, True
    return None, False


# AMP805

INITIALIZE = "deepspeed.initialize"


def deepspeed(
    rule: Rule, detector: Detector, module: ir.Module, project: Project, origins: Origins
) -> Iterator[RawFinding]:
    """Backward and step past the engine, a scaler beside it, and a config that says otherwise than the arguments."""
    if "deepspeed" not in module.words:
        return
    around = list(spaces(module))
    engines, optimizers = _engines(around, module, project)
    own = [Space(where, body, (frozenset(engines.keys), frozenset(optimizers)), project) for where, body in around]
    made = NO_FACTS.union(*(facts_at(body, engines.at) for _, body in around)) if engines.keys else NO_FACTS
    for space in reached(own, ()) if engines.keys else ():
        for at, message in _past_engine(space, project, origins):
            if exclude(made, facts_at(space.body, at)):
                continue
            step = RawStep(module.path, engines.at, "the engine is made here")
            yield RawFinding(rule, space.where.module.path, at, message, Confidence.HIGH, detector.severity, (step,))
    for where, body in around:
        for call in calls(body):
            if any(arg.keyword == "deepspeed" for arg in call.args):
                yield from _disagreement(call, where, rule, detector, project, origins)


def _engines(
    around: Sequence[tuple[Where, Sequence[ir.Stmt]]], module: ir.Module, project: Project
) -> tuple[Prepared, set[tuple[object, str]]]:
    engines, optimizers = Prepared(), set[tuple[object, str]]()
    for where, body in around:
        for node in statements(body):
            value = node.value if isinstance(node, ir.Assign) else None
            if isinstance(value, ir.Call) and project.called(module, value.func, where.scope) == INITIALIZE:
                for target in node.targets if isinstance(node, ir.Assign) else ():
                    if isinstance(target, ir.Sequence) and len(target.items) == 4:
                        engines.at = value.at
                        engines.keys |= set(identities(target.items[0], where))
                        optimizers |= set(identities(target.items[1], where))
    return engines, {key for key in optimizers if key[1] != "_"}


def _past_engine(space: Space, project: Project, origins: Origins) -> Iterator[tuple[int, str]]:
    where, body = space.where, space.body
    engines, optimizers = space.groups
    for call in calls(body):
        base = call.func.base if isinstance(call.func, ir.Attr) else None
        if base is None:
            continue
        if method(call) == "backward" and set(identities(base, where)) & engines:
            if any(_is_scaled(arg.value, where, origins) for arg in call.args):
                yield call.at, "the engine scales the loss itself: a GradScaler before it scales it twice"
        elif method(call) == "backward" and space.carries(base):
            if project.qualified(where.module, call.func, where.scope) is None:
                yield (
                    call.at,
                    "backward past the engine: the loss is neither scaled nor divided",
                )
        elif method(call) == "step" and set(identities(base, where)) & optimizers:
            yield (
                call.at,
                "a step past the engine, whose own step unscales, checks for inf and clips",
            )


def _is_scaled(expr: ir.Expr, where: Where, origins: Origins) -> bool:
    return any(isinstance(part, ir.Call) and _scales(part, where, origins) for part in walk(expr))


def _scales(call: ir.Call, where: Where, origins: Origins) -> bool:
    """``scaler.scale(...)`` of a GradScaler that is built in sight."""
    return (
        method(call) == "scale" and isinstance(call.func, ir.Attr) and bool(origins.constructors(call.func.base, where))
    )


def _disagreement(
    call: ir.Call, where: Where, rule: Rule, detector: Detector, project: Project, origins: Origins
) -> Iterator[RawFinding]:
    """``TrainingArguments(deepspeed={"fp16": {"enabled": True}})`` without ``fp16=True``, or a JSON file that
    says so: transformers refuses that.
    """
    given = next(arg.value for arg in call.args if arg.keyword == "deepspeed")
    configs = [o for o in origins.of(given, where) if o.expr is not None]
    if len(configs) != 1 or any(arg.star for arg in call.args):
        return
    for mode in ("fp16", "bf16"):
        said, related = _enabled(configs[0], mode, project)
        words = (mode, f"{mode}_full_eval")
        asked = [arg.value for arg in call.args if arg.keyword in words]
        if said is None or not all(isinstance(value, ir.Const) for value in asked):
            continue
        wanted = any(isinstance(value, ir.Const) and bool(value.value) for value in asked)
        if said is not wanted:
            message = f"{mode} is {said} in the config and {wanted} in the arguments: a ValueError"
            yield RawFinding(rule, where.module.path, call.at, message, Confidence.HIGH, detector.severity, related)


def _enabled(config: Origin, mode: str, project: Project) -> tuple[bool | None, tuple[RawStep, ...]]:
    """What a configuration, a dict or the name of a JSON file, says of a mode, and where a dict says so."""
    path = config.where.module.path
    if isinstance(config.expr, ir.Const) and isinstance(config.expr.value, str):
        return in_json(project.layout.contents(config.expr.value, path), f"{mode}.enabled"), ()
    said = lookup(config.expr, f"{mode}.enabled") if config.expr is not None and is_dict(config.expr) else None
    if not isinstance(said, ir.Const) or not isinstance(said.value, bool):
        return None, ()
    return said.value, (RawStep(path, said.at, "the config says so here"),)
