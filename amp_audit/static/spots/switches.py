"""Loss scaling and what turns it on: whether a scaler goes with the region whose losses it scales.

AMP201: scaling that a switch of its own turns off (``use_amp`` for the region, ``grad_scaling`` for the scaler), or
that is an argument which may be left out while nothing turns the region off. AMP213: scaling that nothing turns off
beside a region whose dtype is an argument, bfloat16 as well as float16. Where both hang together by more than their
names, be it a test of the dtype or of the device, nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from amp_audit.model import Confidence
from amp_audit.records import record
from amp_audit.rulebook import Detector, Rule
from amp_audit.static.binding.origins import Origin, Origins, Where
from amp_audit.static.binding.project import Project, Scope
from amp_audit.static.binding.signatures import argument
from amp_audit.static.raw import RawFinding, RawStep
from amp_audit.static.source import ir
from amp_audit.static.source.literals import is_literally
from amp_audit.static.source.traverse import bodies, expressions, last_word, statements, walk, words_in
from amp_audit.static.spots.sites import inside
from amp_audit.static.spots.spaces import calls, method

_REGIONS = ("torch.amp.autocast", "torch.cuda.amp.autocast")
_SWITCH = re.compile(r"(?:\w+_)?scal(?:er|ing)", re.I)
"""What a switch of the scaling alone is called."""

_DTYPE = re.compile(r"dtype|precision|bf16|bfloat|fp16|half", re.I)
_TIES = re.compile(rf"scal|{_DTYPE.pattern}", re.I)
"""Words by which a region's own switch may hang together with the scaler's."""

_HALF = frozenset({"torch.float16", "torch.half"})


@record(frozen=True, slots=True)
class _Placed:
    """A scaler or a region that is built, with the tests that hold there."""

    call: ir.Call
    name: str
    where: Where
    tests: tuple[ir.Expr, ...]

    @property
    def asked(self) -> tuple[ir.Expr, ...]:
        """All that must be true for it to be built, and to be on."""
        given = argument(self.call, "enabled", self.name)
        return (*self.tests, given.value) if isinstance(given, ir.Arg) else self.tests

    @property
    def trains(self) -> bool:
        return self.where.scope is not None and "backward" in self.where.scope.function.words


def scaling(call: ir.Call, name: str, where: Where, project: Project, origins: Origins) -> str:
    """How a scaler goes with the regions beside it, in one function or in methods of one class.

    ``apart``: it has a switch of its own, and a float16 region is on without it. ``always``: nothing turns it off, and
    a region has the dtype that an argument says. Else ``tied``.
    """
    if "autocast" not in where.module.words:
        return "tied"
    code = _Code(where.module, project, origins)
    scaler = next((each for each in code.placed(name) if each.call.at == call.at), None)
    regions = [each for each in code.placed(*_REGIONS) if scaler and each.trains and _beside(each, scaler)]
    if scaler is None or not regions:
        return "tied"
    if any(map(_SWITCH.fullmatch, code.settings(scaler))):
        return "apart" if any(code.is_half(each) and not code.is_tied(each) for each in regions) else "tied"
    asked = {word for test in scaler.asked for word in words_in(test)}
    always = all(is_literally(test, True) for test in scaler.asked[len(scaler.tests) :])
    if always and not any(map(_DTYPE.search, asked)) and any(map(code.has_any_dtype, regions)):
        return "always"
    return "tied"


@record(frozen=True, slots=True)
class _Code:
    """A module, read for what it builds."""

    module: ir.Module
    project: Project
    origins: Origins

    def placed(self, *names: str) -> list[_Placed]:
        """What the module builds of these names."""
        return list(self.within(Where(self.module), self.module.body, self.wanted(names)))

    def wanted(self, names: Iterable[str]) -> dict[str, set[str]]:
        """Names by the last words that the module may call them by."""
        found: dict[str, set[str]] = {}
        for name in names:
            found.setdefault(name.rpartition(".")[2], set()).add(name)
        for local, target in (pair for node in self.module.imports for pair in node.bindings):
            if target.rpartition(".")[2] in found:
                found[local] = found[target.rpartition(".")[2]]
        return found

    def within(
        self, where: Where, body: Sequence[ir.Stmt], wanted: dict[str, set[str]], tests: tuple[ir.Expr, ...] = ()
    ) -> Iterator[_Placed]:
        """What some code builds of the names that are wanted, definitions in it included."""
        for node in body:
            if isinstance(node, (ir.Function, ir.Class)):
                yield from self.within(inside(where, node), node.body, wanted)
                continue
            for part in (part for expression in expressions(node) for part in walk(expression)):
                names = wanted.get(last_word(part.func)) if isinstance(part, ir.Call) else None
                if names is not None and isinstance(part, ir.Call):
                    name = self.project.called(self.module, part.func, where.scope)
                    if name is not None and name in names:
                        yield _Placed(part, name, where, tests)
            if isinstance(node, ir.If):
                yield from self.within(where, node.body, wanted, (*tests, node.test))
                yield from self.within(where, node.orelse, wanted, tests)
                continue
            for block in bodies(node):
                yield from self.within(where, block, wanted, tests)

    def settings(self, placed: _Placed) -> frozenset[str]:
        """The words of the settings that must be on for something to be built, and to be on."""
        return frozenset(word for test in placed.asked for word in self._settings(test, placed.where, 0))

    def _settings(self, test: ir.Expr, where: Where, depth: int) -> Iterator[str]:
        """The settings whose conjunction a test is, by their last words: parameters, attributes, entries of dicts."""
        if isinstance(test, ir.BoolOp) and test.op == "and":
            yield from self._settings(test.left, where, depth)
            yield from self._settings(test.right, where, depth)
        elif isinstance(test, ir.Subscript) and isinstance(test.index, ir.Const):
            yield str(test.index.value)
        elif isinstance(test, (ir.Name, ir.Attr)) and depth < 4:
            for origin in self.origins.of(test, where):
                if origin.expr is None or origin.expr is test:
                    yield last_word(test)
                elif not isinstance(origin.expr, ir.Const):
                    yield from self._settings(origin.expr, origin.where, depth + 1)

    def is_tied(self, region: _Placed) -> bool:
        """Whether a region's own switches may hang together with the scaler's."""
        told = {word for test in region.asked for word in words_in(test)} | self.settings(region)
        return any(map(_TIES.search, told))

    def is_half(self, region: _Placed) -> bool:
        """Whether a region computes in float16 on CUDA, for all that the code says."""
        if any(is_literally(test, False) for test in region.asked):
            return False
        dtype, device = (argument(region.call, name, region.name) for name in ("dtype", "device_type"))
        if isinstance(dtype, ir.Arg):
            return self.project.qualified(self.module, dtype.value, region.where.scope) in _HALF
        literal = device.value if isinstance(device, ir.Arg) else None
        return dtype is None and not (isinstance(literal, ir.Const) and literal.value != "cuda")

    def has_any_dtype(self, region: _Placed) -> bool:
        """Whether a region of a class has a dtype that is an argument, float16 unless another one is given, and that
        nothing else in the class asks for.
        """
        given = argument(region.call, "dtype", region.name)
        if not isinstance(given, ir.Arg) or region.where.cls is None or "bfloat16" in region.where.cls.cls.words:
            return False
        made = self.origins.of(given.value, region.where)
        return bool(made) and all(map(self._is_half_unless_given, made))

    def _is_half_unless_given(self, origin: Origin) -> bool:
        default = origin.param.default if origin.param is not None and origin.expr is None else None
        where = origin.where
        return default is not None and self.project.qualified(where.module, default, where.scope) in _HALF


def _beside(one: _Placed, two: _Placed) -> bool:
    """Whether two things are built in one function, or in methods of one class."""
    here, there = one.where, two.where
    if here.cls is not None and there.cls is not None and here.cls.key == there.cls.key:
        return True
    return here.scope is not None and there.scope is not None and here.scope.function is there.scope.function


# A scaler that may be left out


def optional(
    rule: Rule, detector: Detector, module: ir.Module, project: Project, origins: Origins
) -> Iterator[RawFinding]:
    """``if scaler: scaler.scale(loss).backward() else: loss.backward()`` behind a region that is always on."""
    if not {"autocast", "backward", "scale"} <= module.words:
        return
    code = _Code(module, project, origins)
    for where, function in _functions(Where(module), module.body):
        names = {p.name for p in function.params if _may_be_left_out(p) and _SWITCH.fullmatch(p.name)}
        for inner, body in _spaces(where, function) if names and {"autocast", "backward"} <= function.words else ():
            losses = dict(_losses(code, inner, body))
            for call in _plain(body, names):
                base = call.func.base if isinstance(call.func, ir.Attr) else None
                if isinstance(base, ir.Name) and base.id in losses:
                    step = RawStep(module.path, losses[base.id], "this region is on in any case")
                    found = (call.at, detector.message, Confidence.MEDIUM, detector.severity)
                    yield RawFinding(rule, module.path, *found, related=(step,))


def _plain(body: Sequence[ir.Stmt], names: set[str]) -> Iterator[ir.Call]:
    """The backward calls where there is no scaler of these names."""
    for node in statements(body):
        asks = isinstance(node, ir.If) and _asked_for(node.test) in names
        if asks and isinstance(node, ir.If) and any(method(call) == "scale" for call in calls(node.body)):
            yield from (call for call in calls(node.orelse) if method(call) == "backward")


def _losses(code: _Code, where: Where, body: Sequence[ir.Stmt]) -> Iterator[tuple[str, int]]:
    """The names that are assigned in float16 regions of CUDA which nothing turns off, with the regions' places."""
    regions = {
        id(placed.call): placed
        for placed in code.within(where, body, code.wanted(_REGIONS))
        if placed.where.scope is where.scope and all(is_literally(test, True) for test in placed.asked)
    }
    for node in statements(body):
        for context, _ in node.items if isinstance(node, ir.With) else ():
            placed = regions.get(id(context))
            if placed is None or not isinstance(node, ir.With) or not code.is_half(placed) or not _says_cuda(placed):
                continue
            targets = (t for each in statements(node.body) if isinstance(each, ir.Assign) for t in each.targets)
            names = (part.id for target in targets for part in walk(target) if isinstance(part, ir.Name))
            yield from ((name, placed.call.at) for name in names)


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
            yield from _spaces(Where(where.module, Scope(node, where.scope), where.cls), node)


def _may_be_left_out(param: ir.Param) -> bool:
    return isinstance(param.default, ir.Const) and param.default.value in (None, False)


def _asked_for(test: ir.Expr) -> str:
    """The name that a test asks for: ``scaler``, ``scaler is not None``; empty for all else."""
    if isinstance(test, ir.Compare) and len(test.rest) == 1 and test.rest[0][0] in ("is not", "!="):
        nothing = test.rest[0][1]
        test = test.left if isinstance(nothing, ir.Const) and nothing.value is None else test
    return test.id if isinstance(test, ir.Name) else ""


def _says_cuda(region: _Placed) -> bool:
    device = argument(region.call, "device_type", region.name)
    literal = device.value if isinstance(device, ir.Arg) else None
    return region.name == "torch.cuda.amp.autocast" or (isinstance(literal, ir.Const) and literal.value == "cuda")
