"""AMP102: the order mistakes that apex.amp has of its own. AMP217: the steps that apex leaves out.

``with amp.scale_loss(loss, optimizer) as scaled_loss`` unscales the gradients when it is left, so inside it they are
scaled; and what it is given must have been through ``amp.initialize`` before. Where it finds inf or NaN it makes the
optimizer's next ``step`` do nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_audit.model import Confidence
from amp_audit.records import record
from amp_audit.rulebook import Detector, Rule
from amp_audit.static.binding.origins import Origins, Where
from amp_audit.static.binding.project import Project
from amp_audit.static.raw import RawFinding, RawStep
from amp_audit.static.source import ir
from amp_audit.static.source.names import SKIP, is_scheduler
from amp_audit.static.source.traverse import bodies, expressions, last_word, names_in, statements, walk
from amp_audit.static.spots.spaces import CLIPS, calls, method, spaces

INITIALIZE = "apex.amp.initialize"
SCALE_LOSS = "apex.amp.scale_loss"
_PARALLEL = frozenset(
    {
        "torch.nn.DataParallel",
        "torch.nn.parallel.DistributedDataParallel",
        "apex.parallel.DistributedDataParallel",
    }
)


def order(
    rule: Rule, detector: Detector, module: ir.Module, project: Project, origins: Origins
) -> Iterator[RawFinding]:
    """What is done to gradients before apex unscales them, and what comes to ``initialize`` too early or never."""
    if module.words.isdisjoint({"scale_loss", "initialize"}):
        return
    if not any("apex" in each.words for each in (module, *project.modules.values())):
        return
    look = _Look(rule, detector, module, project, origins)
    for where, body in spaces(module):
        yield from look.inside_regions(where, body)
        yield from look.wrapped_too_early(where, body)
        yield from look.never_initialized(where, body)


@record(frozen=True, slots=True)
class _Look:
    rule: Rule
    detector: Detector
    module: ir.Module
    project: Project
    origins: Origins

    def called(self, call: ir.Call, where: Where) -> str | None:
        return self.project.called(self.module, call.func, where.scope)

    def finding(self, at: int, message: str, *related: RawStep, sure: bool = True) -> RawFinding:
        confidence = Confidence.HIGH if sure else Confidence.MEDIUM
        severity = self.detector.severity
        return RawFinding(self.rule, self.module.path, at, message, confidence, severity, related)

    def inside_regions(self, where: Where, body: Sequence[ir.Stmt]) -> Iterator[RawFinding]:
        """Clips, steps and a backward of the unscaled loss inside ``with amp.scale_loss(...)``."""
        for node in statements(body):
            if not isinstance(node, ir.With):
                continue
            for context, _ in node.items:
                if isinstance(context, ir.Call) and self.called(context, where) == SCALE_LOSS:
                    yield from self._inside(context, node.body, where)

    def _inside(self, region: ir.Call, body: Sequence[ir.Stmt], where: Where) -> Iterator[RawFinding]:
        step = RawStep(self.module.path, region.at, "gradients are unscaled only when this region is left")
        loss = _argument(region, 0, "loss")
        optimizer = _argument(region, 1, "optimizers")
        has_backward = False
        for call in calls(body):
            base = call.func.base if isinstance(call.func, ir.Attr) else None
            if method(call) == "backward" and base is not None:
                has_backward = True
                if loss is not None and _same(base, loss):
                    yield self.finding(call.at, "backward of the loss without apex's scale, which is divided out", step)
            elif self.called(call, where) in CLIPS and has_backward:
                yield self.finding(call.at, "clipping inside scale_loss sees gradients that are still scaled", step)
            elif method(call) == "step" and base is not None and optimizer is not None and _same(base, optimizer):
                yield self.finding(call.at, "the optimizer steps on gradients that are still scaled", step)

    def wrapped_too_early(self, where: Where, body: Sequence[ir.Stmt]) -> Iterator[RawFinding]:
        """``DDP(model)`` before ``amp.initialize(model, ...)``."""
        wrapped: dict[str, ir.Call] = {}
        for node in statements(body):
            if not isinstance(node, ir.Assign):
                continue
            call = node.value if isinstance(node.value, ir.Call) else None
            name = self.called(call, where) if call is not None else None
            if call is not None and name == INITIALIZE:
                for model in _names(_argument(call, 0, "models")) & wrapped.keys():
                    step = RawStep(self.module.path, wrapped[model].at, "wrapped here")
                    message = "the model is wrapped already, which raises a RuntimeError: initialize comes first"
                    yield self.finding(call.at, message, step, sure=self._always(wrapped[model], body))
            for target in node.targets:
                for model in _names(target):
                    wrapped.pop(model, None)
                if isinstance(target, ir.Name) and call is not None and name in _PARALLEL:
                    wrapped[target.id] = call

    @staticmethod
    def _always(call: ir.Call, body: Sequence[ir.Stmt]) -> bool:
        """Whether a call stands in no branch of a body."""
        return any(isinstance(node, ir.Assign) and node.value is call for node in body)

    def never_initialized(self, where: Where, body: Sequence[ir.Stmt]) -> Iterator[RawFinding]:
        """``amp.scale_loss`` with an optimizer built in this program, which never calls ``amp.initialize``."""
        for call in calls(body):
            if self.called(call, where) != SCALE_LOSS or self._initializes():
                continue
            optimizer = _argument(call, 1, "optimizers")
            made = (
                [self.origins.called(o.expr, o.where) for o in self.origins.of(optimizer, where)] if optimizer else []
            )
            if made and all(name is not None and name.startswith("torch.optim.") for name in made):
                yield self.finding(call.at, "nothing was handed to amp.initialize, so scale_loss raises a RuntimeError")

    def _initializes(self) -> bool:
        read = any("initialize" in module.words for module in self.project.modules.values())
        return read or self.project.mentioned_elsewhere("initialize")


# AMP217


def schedule(
    rule: Rule, detector: Detector, module: ir.Module, project: Project, origins: Origins
) -> Iterator[RawFinding]:
    """Schedules that advance after a step that apex may have left out, in the same round of a loop."""
    if "scale_loss" not in module.words:
        return
    look = _Look(rule, detector, module, project, origins)
    for where, body in spaces(module):
        for group in _rounds(body):
            yield from _advancing(look, where, group)


def _rounds(body: Sequence[ir.Stmt]) -> Iterator[list[tuple[ir.Stmt, bool]]]:
    """The statements of a body that run in one round, those of each loop in it apart; and whether a test around one
    asks if the step was left out.
    """
    own: list[tuple[ir.Stmt, bool]] = []
    loops: list[ir.For | ir.While] = []
    stack = [(node, False) for node in reversed(body)]
    while stack:
        node, asked = stack.pop()
        own.append((node, asked))
        if isinstance(node, (ir.For, ir.While)):
            loops.append(node)
            continue
        asked = asked or (isinstance(node, ir.If) and any(map(SKIP.search, names_in(node.test))))
        stack += [(inner, asked) for block in reversed(bodies(node)) for inner in reversed(block)]
    yield own
    for loop in loops:
        yield from _rounds(loop.body)


def _advancing(look: _Look, where: Where, group: list[tuple[ir.Stmt, bool]]) -> Iterator[RawFinding]:
    """``scheduler.step()`` behind ``optimizer.step()`` behind ``scale_loss`` of that optimizer."""
    scaled: ir.Expr | None = None
    stepped: ir.Call | None = None
    for node, asked in group:
        for call in (part for each in expressions(node) for part in walk(each) if isinstance(part, ir.Call)):
            base = call.func.base if isinstance(call.func, ir.Attr) and call.func.name == "step" else None
            if look.called(call, where) == SCALE_LOSS:
                scaled = _argument(call, 1, "optimizers")
            elif base is not None and scaled is not None and _same(base, scaled):
                stepped = call
            elif (
                base is not None and stepped is not None and is_scheduler(last_word(base)) and not (asked or call.args)
            ):
                step = RawStep(look.module.path, stepped.at, "apex may leave this step out")
                yield look.finding(call.at, look.detector.message, step)


def _argument(call: ir.Call, position: int, keyword: str) -> ir.Expr | None:
    for index, arg in enumerate(call.args):
        if arg.star:
            return None
        if arg.keyword == keyword or (arg.keyword is None and index == position):
            return arg.value
    return None


def _names(expr: ir.Expr | None) -> set[str]:
    """The names in a target or in an argument that may be a list of models."""
    if isinstance(expr, ir.Name):
        return {expr.id}
    return {name for item in expr.items for name in _names(item)} if isinstance(expr, ir.Sequence) else set()


def _same(left: ir.Expr, right: ir.Expr) -> bool:
    """Whether two expressions are the same name or the same attribute of the same name."""
    if isinstance(left, ir.Name) and isinstance(right, ir.Name):
        return left.id == right.id
    if isinstance(left, ir.Attr) and isinstance(right, ir.Attr):
        return left.name == right.name and _same(left.base, right.base)
    return False
