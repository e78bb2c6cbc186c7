"""AMP201: float16 regions whose loss scaling can be off by itself. AMP213: scaling that is on whatever the dtype.

Either a switch of its own says so (``use_amp`` for the region, ``grad_scaling`` for the scaler), or the scaler is an
argument that may be left out while nothing turns the region off. Where both hang together by more than their names,
be it a test of the dtype or of the device, nothing is said. The other way round a scaler that nothing turns off may
stand beside a region whose dtype is an argument, bfloat16 as well as float16.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from amp_audit.model import Confidence
from amp_audit.rulebook import Detector, Rule
from amp_audit.static.binding.origins import Origin, Origins, Where
from amp_audit.static.binding.project import Project, Scope
from amp_audit.static.binding.signatures import SCALERS, argument
from amp_audit.static.raw import RawFinding, RawStep
from amp_audit.static.source import ir
from amp_audit.static.source.literals import is_literally
from amp_audit.static.source.traverse import bodies, expressions, last_word, statements, walk, words_in
from amp_audit.static.spots.sites import inside
from amp_audit.static.spots.spaces import calls, method

_REGIONS = frozenset({"torch.amp.autocast", "torch.autocast", "torch.cuda.amp.autocast"})
_SWITCH = re.compile(r"(?:\w+_)?scal(?:er|ing)", re.I)
"""What a switch of the scaling alone is called."""

_TIES = re.compile(r"scal|dtype|precision|bf16|bfloat|fp16|half", re.I)
"""Words by which a region's own switch may hang together with the scaler's."""

_DTYPE = re.compile(r"dtype|precision|bf16|bfloat|fp16|half", re.I)
_HALF = frozenset({"torch.float16", "torch.half"})
_MESSAGE = "where no scaler is given, the loss of this float16 region is not scaled"


def apart(
    rule: Rule, detector: Detector, module: ir.Module, project: Project, origins: Origins
) -> Iterator[RawFinding]:
    """Scalers with a switch of their own beside a region without it, and regions whose scaler may be left out."""
    if "autocast" not in module.words or module.words.isdisjoint({"GradScaler", "scale"}):
        return
    look = _Look(rule, detector, module, project, origins)
    placed = list(look.calls(Where(module), module.body, ()))
    yield from look.with_switches(placed)
    for where, function in _functions(Where(module), module.body):
        yield from look.optional(where, function)


def whatever_the_dtype(
    rule: Rule, detector: Detector, module: ir.Module, project: Project, origins: Origins
) -> Iterator[RawFinding]:
    """Scalers that are always on beside a region whose dtype is an argument."""
    if "autocast" not in module.words or "GradScaler" not in module.words:
        return
    look = _Look(rule, detector, module, project, origins)
    yield from look.always_on(list(look.calls(Where(module), module.body, ())))


@dataclass(frozen=True, slots=True)
class _Placed:
    """A scaler or a region that is built, with the tests that hold there."""

    call: ir.Call
    name: str
    where: Where
    tests: tuple[ir.Expr, ...]

    @property
    def enabled(self) -> ir.Expr | None:
        given = argument(self.call, "enabled", "torch.amp.autocast" if self.name == "torch.autocast" else self.name)
        return given.value if isinstance(given, ir.Arg) else None


@dataclass(frozen=True, slots=True)
class _Look:
    rule: Rule
    detector: Detector
    module: ir.Module
    project: Project
    origins: Origins

    def calls(self, where: Where, body: Sequence[ir.Stmt], tests: tuple[ir.Expr, ...]) -> Iterator[_Placed]:
        """The scalers and regions that some code builds, definitions in it included."""
        for node in body:
            if isinstance(node, (ir.Function, ir.Class)):
                yield from self.calls(inside(where, node), node.body, ())
                continue
            for expression in expressions(node):
                for part in walk(expression):
                    if not isinstance(part, ir.Call):
                        continue
                    name = self.project.called(self.module, part.func, where.scope)
                    if name is not None and (name in SCALERS or name in _REGIONS):
                        yield _Placed(part, name, where, tests)
            if isinstance(node, ir.If):
                yield from self.calls(where, node.body, (*tests, node.test))
                yield from self.calls(where, node.orelse, tests)
                continue
            for block in bodies(node):
                yield from self.calls(where, block, tests)

    # Two switches

    def with_switches(self, placed: list[_Placed]) -> Iterator[RawFinding]:
        for scaler in placed:
            own = self._switches(scaler) if scaler.name in SCALERS else frozenset()
            if not any(map(_SWITCH.fullmatch, own)):
                continue
            region = next((each for each in placed if self._trains_beside(each, scaler)), None)
            if region is not None:
                step = RawStep(self.module.path, region.call.at, "this region does not ask for that switch")
                yield self._finding(scaler.call.at, self.detector.message, step)

    def _switches(self, placed: _Placed) -> frozenset[str]:
        """The words of the settings that must be on for something to be built, and to be on."""
        wanted = [*placed.tests, *([placed.enabled] if placed.enabled is not None else [])]
        return frozenset(word for test in wanted for word in self._settings(test, placed.where, 0))

    def _settings(self, test: ir.Expr, where: Where, depth: int) -> Iterator[str]:
        """The settings whose conjunction a test is, by their last words: parameters, attributes, entries of dicts."""
        if isinstance(test, ir.BoolOp) and test.op == "and":
            yield from self._settings(test.left, where, depth)
            yield from self._settings(test.right, where, depth)
        elif isinstance(test, ir.Subscript) and isinstance(test.index, ir.Const):
            yield str(test.index.value)
        elif isinstance(test, (ir.Name, ir.Attr)) and depth < 4:
            found = self.origins.of(test, where)
            for origin in found:
                if origin.expr is None or origin.expr is test:
                    yield last_word(test)
                elif not isinstance(origin.expr, ir.Const):
                    yield from self._settings(origin.expr, origin.where, depth + 1)

    def _trains_beside(self, region: _Placed, scaler: _Placed) -> bool:
        """Whether a float16 region belongs to the training of a scaler and does not hang on its switch."""
        if region.name not in _REGIONS or not self._is_half(region) or region.where.scope is None:
            return False
        if not _beside(region, scaler) or "backward" not in region.where.scope.function.words:
            return False
        tests = [*region.tests, *([region.enabled] if region.enabled is not None else [])]
        told = {word for test in tests for word in words_in(test)}
        told |= {word for test in tests for word in self._settings(test, region.where, 0)}
        return not any(map(_TIES.search, told))

    def _is_half(self, region: _Placed) -> bool:
        """Whether a region computes in float16 on CUDA, for all that the code says."""
        if is_literally(region.enabled, False):
            return False
        signature = "torch.amp.autocast" if region.name == "torch.autocast" else region.name
        dtype, device = (argument(region.call, name, signature) for name in ("dtype", "device_type"))
        if isinstance(dtype, ir.Arg):
            return self.project.qualified(self.module, dtype.value, region.where.scope) in _HALF
        literal = device.value if isinstance(device, ir.Arg) else None
        return dtype is None and not (isinstance(literal, ir.Const) and literal.value != "cuda")

    # A scaler that is always on

    def always_on(self, placed: list[_Placed]) -> Iterator[RawFinding]:
        for scaler in placed:
            fixed = scaler.enabled is None or is_literally(scaler.enabled, True)
            around = {word for test in scaler.tests for word in words_in(test)}
            if scaler.name not in SCALERS or not fixed or any(map(_DTYPE.search, around)):
                continue
            region = next((each for each in placed if self._has_any_dtype(each) and _beside(each, scaler)), None)
            if region is not None:
                step = RawStep(self.module.path, region.call.at, "this region has the dtype that is asked for")
                yield self._finding(scaler.call.at, self.detector.message, step)

    def _has_any_dtype(self, region: _Placed) -> bool:
        """Whether a region is trained in a dtype that is an argument, float16 unless another one is given, and that
        nothing else there asks for.
        """
        if region.name not in _REGIONS or region.where.scope is None or region.where.cls is None:
            return False
        given = argument(region.call, "dtype", "torch.amp.autocast" if region.name == "torch.autocast" else region.name)
        words = region.where.scope.function.words
        if not isinstance(given, ir.Arg) or "backward" not in words or "bfloat16" in region.where.cls.cls.words:
            return False
        made = self.origins.of(given.value, region.where)
        return bool(made) and all(self._is_option(origin) for origin in made)

    def _is_option(self, origin: Origin) -> bool:
        default = origin.param.default if origin.param is not None else None
        named = (
            self.project.qualified(origin.where.module, default, origin.where.scope) if default is not None else None
        )
        return origin.expr is None and named in _HALF

    # A scaler that may be left out

    def optional(self, where: Where, function: ir.Function) -> Iterator[RawFinding]:
        """``if scaler: scaler.scale(loss).backward() else: loss.backward()`` behind a region that is always on."""
        if function.words.isdisjoint({"autocast"}) or "backward" not in function.words:
            return
        names = {p.name for p in function.params if _may_be_left_out(p) and _SWITCH.fullmatch(p.name)}
        for inner, body in _spaces(where, function) if names else ():
            losses = dict(self._losses(inner, body))
            for node in statements(body) if losses else ():
                if not isinstance(node, ir.If) or _asked_for(node.test) not in names:
                    continue
                if not any(method(call) == "scale" for call in calls(node.body)):
                    continue
                for call in calls(node.orelse):
                    base = call.func.base if isinstance(call.func, ir.Attr) else None
                    if method(call) == "backward" and isinstance(base, ir.Name) and base.id in losses:
                        step = RawStep(self.module.path, losses[base.id], "this region is on in any case")
                        yield self._finding(call.at, _MESSAGE, step)

    def _losses(self, where: Where, body: Sequence[ir.Stmt]) -> Iterator[tuple[str, int]]:
        """The names that are assigned in float16 regions of CUDA which nothing turns off, with the regions' places."""
        for placed in self.calls(where, body, ()):
            word = placed.enabled
            fixed = word is None or is_literally(word, True)
            if placed.where.scope is not where.scope or placed.name not in _REGIONS or placed.tests or not fixed:
                continue
            if not self._is_half(placed) or not _says_cuda(placed):
                continue
            for node in statements(body):
                if isinstance(node, ir.With) and any(context is placed.call for context, _ in node.items):
                    for each in statements(node.body):
                        for target in each.targets if isinstance(each, ir.Assign) else ():
                            yield from ((part.id, placed.call.at) for part in walk(target) if isinstance(part, ir.Name))

    def _finding(self, at: int, message: str, *related: RawStep) -> RawFinding:
        severity = self.detector.severity
        return RawFinding(self.rule, self.module.path, at, message, Confidence.MEDIUM, severity, related)


def _beside(one: _Placed, two: _Placed) -> bool:
    """Whether two things are built in one function, or in methods of one class."""
    here, there = one.where, two.where
    if here.cls is not None and there.cls is not None and here.cls.key == there.cls.key:
        return True
    return here.scope is not None and there.scope is not None and here.scope.function is there.scope.function


def _functions(where: Where, body: Sequence[ir.Stmt]) -> Iterator[tuple[Where, ir.Function]]:
    """The functions and methods that a body defines, without those nested in them."""
    for node in statements(body):
        if isinstance(node, ir.Function):
            yield inside(where, node), node
        elif isinstance(node, ir.Class):
            yield from _functions(inside(where, node), node.body)


def _spaces(where: Where, function: ir.Function) -> Iterator[tuple[Where, Sequence[ir.Stmt]]]:
    """The body of a function, and those of the functions that it defines: its parameters are known there too."""
    yield where, function.body
    for node in statements(function.body):
        if isinstance(node, ir.Function):
            inner = Where(where.module, Scope(node, where.scope), where.cls)
            yield from _spaces(inner, node)


def _may_be_left_out(param: ir.Param) -> bool:
    return isinstance(param.default, ir.Const) and param.default.value in (None, False)


def _asked_for(test: ir.Expr) -> str:
    """The name that a test asks for: ``scaler``, ``scaler is not None``; empty for all else."""
    if isinstance(test, ir.Compare) and len(test.rest) == 1 and test.rest[0][0] in ("is not", "!="):
        nothing = test.rest[0][1]
        test = test.left if isinstance(nothing, ir.Const) and nothing.value is None else test
    return test.id if isinstance(test, ir.Name) else ""


def _says_cuda(region: _Placed) -> bool:
    device = argument(region.call, "device_type", "torch.amp.autocast")
    literal = device.value if isinstance(device, ir.Arg) else None
    return region.name == "torch.cuda.amp.autocast" or (isinstance(literal, ir.Const) and literal.value == "cuda")
