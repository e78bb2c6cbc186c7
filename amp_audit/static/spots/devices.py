"""Whether a program decides while it runs on which kind of device it computes, and whether a place follows that."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from amp_audit.records import record
from amp_audit.static.binding.origins import Origin, Origins, Where
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import expressions, last_word, parts, statements, walk, words_in
from amp_audit.static.spots.gates import Gate
from amp_audit.static.spots.sites import sites

_KINDS = re.compile(r"(cuda|cpu|mps|xpu|npu|hpu)(:\d+)?")
_BOILERPLATE = re.compile(r"seed|print|cudnn|info|get_device_name|empty_cache|synchronize|rng_state", re.I)
_LOW = re.compile(r"fp16|half|amp(?!le)|mixed|precision", re.I)
_TELLING = re.compile(r"cuda|gpu|cpu|mps|xpu|device|is_available", re.I)
_DEEPEST = 3
"""How many calls up a flag is followed that is handed from one function to the next."""


@record(frozen=True, slots=True)
class Choice:
    """What a module picks its device from. ``others``: the kinds beside CUDA; empty where it picks none. ``minded``:
    whether it takes care elsewhere too that there may be no CUDA. ``given``: whether a region of it is one of a device
    that it is given, and none of its tensors are on CUDA whatever that is."""

    others: frozenset[str]
    minded: bool
    given: bool = False


class Choices:
    """Those of many modules, each looked for once."""

    def __init__(self) -> None:
        self._found: dict[str, Choice] = {}

    def of(self, module: ir.Module) -> Choice:
        """As of ``choice``."""
        found = self._found.get(module.path)
        if found is None:
            found = self._found[module.path] = choice(module)
        return found


def choice(module: ir.Module) -> Choice:
    """The kinds of device that a module picks by a condition where it could pick CUDA, or by an option's default.

    ``"cuda" if torch.cuda.is_available() else "cpu"``, or an ``if`` whose arms assign different kinds of device.
    Nothing for a module that insists on CUDA.
    """
    if _insists(module):
        return Choice(frozenset(), False)
    found: set[str] = set()
    minded = given = any(map(_is_of_a_device, parts(module.body, into=True)))
    for test, arms in _conditions(module):
        others = _instead_of_cuda(*arms)
        found |= others
        minded = minded or (not others and _asks_for_cuda(test))
    on_cuda = any(map(_is_on_cuda, parts(module.body, into=True)))
    unless_told = set() if on_cuda else set().union(*map(_offered_devices, parts(module.body, into=True)))
    return Choice(frozenset(found | unless_told), minded or bool(unless_told), given and not on_cuda)


def _is_of_a_device(part: ir.Expr) -> bool:
    """``torch.autocast(device.type)``, switched on."""
    if not isinstance(part, ir.Call) or last_word(part.func) != "autocast" or is_disabled(part):
        return False
    kind = next((arg.value for arg in part.args if arg.keyword in (None, "device_type")), None)
    return isinstance(kind, ir.Attr) and kind.name == "type" and "device" in last_word(kind.base).lower()


def _offered_devices(part: ir.Expr) -> set[str]:
    """The devices other than CUDA that ``add_argument("--device", default="cpu")`` picks where nobody names one, or
    that its ``choices`` let one name.
    """
    if not isinstance(part, ir.Call) or last_word(part.func) not in ("add_argument", "option", "DEFINE_string"):
        return set()
    named = any(
        isinstance(arg.value, ir.Const) and str(arg.value.value).lstrip("-") == "device" for arg in part.args[:2]
    )
    default = [arg.value for arg in part.args if arg.keyword == "default"]
    choices = [arg.value for arg in part.args if arg.keyword == "choices"]
    listed = [item for each in choices if isinstance(each, ir.Sequence) for item in each.items]
    return _literals([*default, *listed]) - {"cuda"} if named else set()


def _is_on_cuda(part: ir.Expr) -> bool:
    """``torch.device("cuda")`` or ``model.cuda()``."""
    if not isinstance(part, ir.Call):
        return False
    named = part.args[0].value if part.args and last_word(part.func) == "device" else None
    kind = _KINDS.fullmatch(named.value) if isinstance(named, ir.Const) and isinstance(named.value, str) else None
    is_moved = isinstance(part.func, ir.Attr) and part.func.name == "cuda" and not part.args
    return is_moved or (kind is not None and kind.group(1) == "cuda")


def is_disabled(call: ir.Call) -> bool:
    """Whether the constructor call of a scaler or a region turns it off by a literal."""
    return any(
        arg.keyword == "enabled" and isinstance(arg.value, ir.Const) and arg.value.value is False for arg in call.args
    )


def _conditions(module: ir.Module) -> Iterator[tuple[ir.Expr, tuple[set[str], set[str]]]]:
    """The tests of a module, each with the devices that its two arms give; without those that guard a seed only."""
    for node in statements(module.body, into=True):
        if isinstance(node, ir.If) and not _is_boilerplate(node):
            yield node.test, (_assigned(node.body), _assigned(node.orelse))
        for expression in expressions(node):
            for part in walk(expression):
                if isinstance(part, ir.IfExp):
                    yield part.test, (_literals([part.body]), _literals([part.orelse]))
        if isinstance(node, ir.Function):
            yield from _returns(node)


def _returns(function: ir.Function) -> Iterator[tuple[ir.Expr, tuple[set[str], set[str]]]]:
    """The first test of a function that asks for a device and gives one or another back."""
    own = [*statements(function.body)]
    test = next((node.test for node in own if isinstance(node, ir.If) and "is_available" in words_in(node.test)), None)
    returned = _literals(node.value for node in own if isinstance(node, ir.Return) and node.value is not None)
    if test is not None and "cuda" in returned:
        yield test, ({"cuda"}, returned - {"cuda"})


def _is_boilerplate(node: ir.If) -> bool:
    """Whether all that stands under a test seeds, prints, or sets how kernels are chosen."""
    return all(
        isinstance(inner, (ir.Evaluate, ir.Assign))
        and any(_BOILERPLATE.search(word) for word in words_in(_first(inner)))
        for inner in node.body
    )


def _first(node: ir.Evaluate | ir.Assign) -> ir.Expr:
    return node.value if isinstance(node, ir.Evaluate) else node.targets[0]


def _asks_for_cuda(test: ir.Expr) -> bool:
    """Whether a test asks if there is CUDA, or of which kind a device is."""
    words = set(words_in(test))
    return ("is_available" in words and "cuda" in words) or (
        isinstance(test, ir.Compare)
        and bool(words & {"type", "device", "device_type"})
        and bool(words & {"cuda", "cpu"})
    )


def _insists(module: ir.Module) -> bool:
    """Whether a module asserts that there is CUDA, or ends where there is none, be it only where a flag wants it."""
    for node in statements(module.body, into=True):
        if isinstance(node, ir.Assert) and "is_available" in words_in(node.test):
            return True
        if isinstance(node, ir.If) and _finds_none(node.test):
            last = node.body[-1] if node.body else None
            if isinstance(last, ir.Raise) or (isinstance(last, ir.Evaluate) and "exit" in words_in(last.value)):
                return True
    return False


def _finds_none(test: ir.Expr) -> bool:
    """``not torch.cuda.is_available()``, perhaps ``and fp16``."""
    if isinstance(test, ir.BoolOp) and test.op == "and":
        sides = ((test.left, test.right), (test.right, test.left))
        return any(_finds_none(one) and any(map(_LOW.search, words_in(other))) for one, other in sides)
    return isinstance(test, ir.Unary) and test.op == "not" and "is_available" in words_in(test)


def _instead_of_cuda(one: set[str], other: set[str]) -> set[str]:
    if ("cuda" in one) == ("cuda" in other):
        return set()
    return (one | other) - {"cuda"} if one and other else set()


def _assigned(body: Sequence[ir.Stmt]) -> set[str]:
    """The kinds of device that an arm assigns, those of an ``elif`` below it too."""
    return _literals(node.value for node in statements(body) if isinstance(node, ir.Assign))


def _literals(values: Iterable[ir.Expr]) -> set[str]:
    """The kinds of device that values name as a whole: ``"cuda:0"``, ``torch.device("cpu")``, or a choice of such."""
    found: set[str] = set()
    for value in values:
        if isinstance(value, ir.IfExp):
            found |= _literals([value.body, value.orelse])
        elif isinstance(value, ir.Call) and value.args and last_word(value.func) == "device":
            found |= _literals([value.args[0].value])
        elif isinstance(value, ir.Const) and isinstance(value.value, str):
            match = _KINDS.fullmatch(value.value)
            found |= {match.group(1)} if match is not None else set()
    return found


def is_followed(gates: Iterable[Gate], enabled: ir.Expr | None, where: Where, origins: Origins) -> bool:
    """Whether a place depends on the device: by a test around it, or by what its ``enabled`` is computed from."""
    tests = [gate for gate in gates if not isinstance(gate, ir.Try)]
    return any(_tells(test, where, origins) for test in (*tests, *([enabled] if enabled is not None else [])))


def may_be_followed(gates: Iterable[Gate], enabled: ir.Expr | None, where: Where, origins: Origins) -> bool:
    """Whether a place depends on a flag that is handed in: nobody knows whether it was computed from the device."""
    tests = [gate for gate in gates if not isinstance(gate, ir.Try)]
    asked = [part for test in (*tests, *([enabled] if enabled is not None else [])) for part in walk(test)]
    bases = {part.base.at for part in asked if isinstance(part, (ir.Attr, ir.Subscript))}
    names = (part for part in asked if isinstance(part, (ir.Name, ir.Attr)) and part.at not in bases)
    return any(origin.expr is None for name in names for origin in origins.of(name, where))


def _tells(test: ir.Expr, where: Where, origins: Origins, deep: int = 0) -> bool:
    """Whether an expression speaks of devices, itself or in what its names were assigned, or in what every call hands
    over that gives a parameter its value."""
    seen = [test]
    for part in walk(test):
        for origin in origins.of(part, where) if isinstance(part, (ir.Name, ir.Attr)) else ():
            if origin.expr is not None:
                seen.append(origin.expr)
                continue
            given = [*_handed_over(origin)] if deep < _DEEPEST else []
            if given and all(_tells(value, caller, origins, deep + 1) for value, caller in given):
                return True
    return any(_TELLING.search(word) for expr in seen for word in words_in(expr))


def _handed_over(origin: Origin) -> Iterator[tuple[ir.Expr, Where]]:
    """What the calls of a function in its own module give a parameter, each with where it stands."""
    param, scope = origin.param, origin.where.scope
    if param is None or scope is None:
        return
    names = [each.name for each in scope.function.params if each.kind == "positional"]
    for site in sites(origin.where.module):
        func, args = site.call.func, site.call.args
        if last_word(func) != scope.function.name or any(arg.star for arg in args):
            continue
        bound = names[1:] if isinstance(func, ir.Attr) and names[:1] in (["self"], ["cls"]) else names
        plain = zip(bound, (arg.value for arg in args if arg.keyword is None))
        given = {**dict(plain), **{arg.keyword: arg.value for arg in args if arg.keyword is not None}}
        if param.name in given:
            yield given[param.name], site.where
        elif param.default is not None:
            yield param.default, origin.where
