"""AMP312 and AMP319: classes derived from ``torch.autograd.Function``, under autocast and under a loss scale."""

from __future__ import annotations

import re
from collections.abc import Iterator

from amp_audit.model import Confidence
from amp_audit.records import record
from amp_audit.rulebook import Detector, Rule
from amp_audit.static.binding.names import Assigned, Names
from amp_audit.static.binding.origins import Origins
from amp_audit.static.binding.programs import Programs
from amp_audit.static.binding.project import Alternatives, ClassRef, External, Project, Scope
from amp_audit.static.raw import RawFinding
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import last_word, parts, statements, walk
from amp_audit.static.spots.spaces import calls, method

FUNCTION = "torch.autograd.Function"
_NEUTRAL = frozenset({"staticmethod", "classmethod", "once_differentiable"})
_CASTS = frozenset(
    (
        "is_autocast_enabled",
        "autocast",
        "get_autocast_dtype",
        "get_autocast_gpu_dtype",
        "custom_fwd",
        "float",
        "half",
        "bfloat16",
        "type_as",
        "dtype",
        "float16",
        "float32",
        "to",
    )
)
_MATMULS = frozenset(
    (
        "mm",
        "bmm",
        "matmul",
        "addmm",
        "addmv",
        "mv",
        "addbmm",
        "baddbmm",
        "einsum",
        "linear",
        "bilinear",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "chain_matmul",
        "multi_dot",
    )
)
"""Ops that autocast runs in low precision, by their last name, as functions and as methods."""

_EXTENSION = re.compile(r"_C|_ext|ext_module|\w*_(?:cuda|ext|ops|kernels?)|_backend|fused", re.I)
_CALLERS = 6
"""So many calls away a region is looked for."""

_OF_CTX = frozenset({"needs_input_grad", "set_materialize_grads", "materialize_grads"})
"""What autograd's own ``ctx`` has that is called after gradients and is none."""

_LEARNED = re.compile(r"weight|bias|gamma|beta")
"""What a parameter of the model is called, where it is handed to a kernel."""


@record(frozen=True, slots=True)
class _Custom:
    """One such class: its methods by name, and the decorators of each that matter, by their last word."""

    ref: ClassRef
    methods: dict[str, ir.Function]
    marks: dict[str, frozenset[str]]

    @property
    def is_readable(self) -> bool:
        """Whether no decorator that may do anything is on what autograd calls."""
        called = ("forward", "backward", "setup_context")
        return not any(self.marks.get(name, frozenset()) - {"custom_fwd", "custom_bwd"} for name in called)

    def has(self, method: str, mark: str) -> bool:
        return mark in self.marks.get(method, ())


def _classes(module: ir.Module, project: Project) -> Iterator[_Custom]:
    if "backward" not in module.words:
        return
    for node in statements(module.body, into=True):
        if isinstance(node, ir.Class) and project.is_subclass(ref := ClassRef(module, node), FUNCTION):
            methods = {each.name: each for each in node.body if isinstance(each, ir.Function)}
            if {"forward", "backward"} <= methods.keys():
                marks = {name: _marks(method, module, project) for name, method in methods.items()}
                yield _Custom(ref, methods, marks)


def _marks(method: ir.Function, module: ir.Module, project: Project) -> frozenset[str]:
    """The last words of a method's decorators, by what they are bound to; without those that change nothing here."""
    found = set()
    for decorator in method.decorators:
        func = decorator.func if isinstance(decorator, ir.Call) else decorator
        binding = project.resolve(module, func)
        options = binding.options if isinstance(binding, Alternatives) else (binding,)
        names = {option.dotted.rpartition(".")[2] for option in options if isinstance(option, External)}
        found |= names or {last_word(func) or "?"}
    return frozenset(found - _NEUTRAL)


# AMP312


def without_custom_fwd(
    rule: Rule, detector: Detector, module: ir.Module, project: Project, origins: Origins
) -> Iterator[RawFinding]:
    """Pairs of which one half is missing, and matmuls in a backward that autocast does not reach."""
    for custom in _classes(module, project):
        found = _unpaired(custom) or _undecorated(custom, project)
        if found is not None:
            at, message, confidence = found
            yield RawFinding(rule, module.path, at, message, confidence, detector.severity)


def _unpaired(custom: _Custom) -> tuple[int, str, Confidence] | None:
    backward = custom.methods["backward"]
    if custom.has("backward", "custom_bwd") and not custom.has("forward", "custom_fwd"):
        if custom.marks["forward"]:
            return None
        message = "custom_bwd without custom_fwd on forward: backward raises an AttributeError (_fwd_used_autocast)"
        return backward.at, message, Confidence.HIGH
    if "setup_context" in custom.methods and custom.has("forward", "custom_fwd"):
        message = "custom_fwd takes forward's first argument for ctx; with setup_context it is an input"
        return custom.methods["forward"].at, message, Confidence.HIGH
    return None


def _undecorated(custom: _Custom, project: Project) -> tuple[int, str, Confidence] | None:
    """A Function that meets half and float32 tensors under autocast, and casts none of them."""
    if custom.has("backward", "custom_bwd") or not custom.is_readable or custom.ref.cls.words & _CASTS:
        return None
    if not _is_under_autocast(custom, project) or _callers_cast(custom, project):
        return None
    forward, backward = custom.methods["forward"], custom.methods["backward"]
    if _multiplies_saved(backward) and not _looks_up(forward):
        message = "backward multiplies a saved tensor with the gradient, outside autocast: their dtypes differ there"
    elif "Parameter" in custom.ref.module.words and _extension_calls(forward):
        message = "under autocast the kernel gets half features beside a float32 parameter, and nothing casts them"
    else:
        return None
    return custom.ref.cls.at, message, Confidence.MEDIUM


def _is_under_autocast(custom: _Custom, project: Project) -> bool:
    """Whether a region may be in force where the Function is applied: there are regions, and its callers lead to a
    model's method or to code that enters one. What nobody calls may be called by anybody.
    """
    if not any("autocast" in module.words for module in project.modules.values()):
        return False
    names, seen = _aliases(custom), set[int]()
    for depth in range(_CALLERS):
        callers = [pair for pair in _callers(names, custom, project) if id(pair[0]) not in seen]
        if any(ref is not None and project.is_subclass(ref, "torch.nn.Module") for _, ref in callers):
            return True
        if any("autocast" in function.words for function, _ in callers):
            return True
        if not callers:
            return depth == 0 or any(_runs(names, module) for module in project.modules.values())
        seen |= {id(function) for function, _ in callers}
        names = {function.name for function, _ in callers}
    return True


def _runs(names: set[str], module: ir.Module) -> bool:
    """Whether a script that enters a region speaks of some names itself."""
    own = parts(module.body) if "autocast" in module.words and not names.isdisjoint(module.words) else ()
    return any(isinstance(part, (ir.Name, ir.Attr)) and last_word(part) in names for part in own)


def _callers(names: set[str], custom: _Custom, project: Project) -> Iterator[tuple[ir.Function, ClassRef | None]]:
    """The functions that speak of some names, with the classes whose methods they are."""
    for module in project.modules.values():
        if not names.isdisjoint(module.words):
            for function, cls in project.definitions(module):
                if not names.isdisjoint(function.words) and cls is not custom.ref.cls:
                    yield function, ClassRef(module, cls) if cls is not None else None


def _callers_cast(custom: _Custom, project: Project) -> bool:
    """Whether functions around the calls of ``apply`` speak of dtypes: they prepare what they pass."""
    names = _aliases(custom)
    for module in project.modules.values():
        if module is not custom.ref.module and not _imports(module, names):
            continue
        for node in statements(module.body, into=True):
            if isinstance(node, ir.Function) and node.words & names and node.words & _CASTS:
                return True
    return False


def _imports(module: ir.Module, names: set[str]) -> bool:
    return not names.isdisjoint(module.words) and any(
        target.rpartition(".")[2] in names for node in module.imports for _, target in node.bindings
    )


def _aliases(custom: _Custom) -> set[str]:
    """The class's name and the names that its ``apply`` is assigned to in its own module."""
    names = {custom.ref.cls.name}
    for node in custom.ref.module.body:
        if isinstance(node, ir.Assign) and _applied(node.value) in names:
            names |= {target.id for target in node.targets if isinstance(target, ir.Name)}
    return names


def _applied(value: ir.Expr) -> str | None:
    """The class whose ``apply`` a value is."""
    if isinstance(value, ir.Attr) and value.name == "apply" and isinstance(value.base, ir.Name):
        return value.base.id
    return None


def _multiplies_saved(backward: ir.Function) -> bool:
    """Whether a gradient and a saved tensor meet in a matmul or a convolution."""
    grads = {param.name for param in backward.params[1:]}
    saved = _saved(backward)
    together = map(_operands, parts(backward.body))
    return any(_mentions(operands, grads) and _mentions(operands, saved) for operands in together)


def _operands(part: ir.Expr) -> list[ir.Expr]:
    if isinstance(part, ir.Binary) and part.op == "@":
        return [part.left, part.right]
    if isinstance(part, ir.Call):
        base = [part.func.base] if isinstance(part.func, ir.Attr) else []
        return [*base, *(arg.value for arg in part.args)] if last_word(part.func) in _MATMULS else []
    return []


def _looks_up(forward: ir.Function) -> bool:
    """Whether a forward gives rows of a table, in the table's own dtype, and multiplies no matrices."""
    looked_up = any("embed" in last_word(call.func).lower() for call in calls(forward.body))
    return looked_up and not any(map(_operands, parts(forward.body)))


def _saved(backward: ir.Function) -> set[str]:
    """The names that backward unpacks from ``ctx.saved_tensors``."""
    found: set[str] = set()
    for node in statements(backward.body):
        if isinstance(node, ir.Assign) and any(
            isinstance(part, ir.Attr) and part.name == "saved_tensors" for part in walk(node.value)
        ):
            found |= {name.id for target in node.targets for name in walk(target) if isinstance(name, ir.Name)}
    return found


def _mentions(operands: list[ir.Expr], names: set[str]) -> bool:
    return any(isinstance(part, ir.Name) and part.id in names for operand in operands for part in walk(operand))


def _extension_calls(function: ir.Function) -> bool:
    """Whether a kernel of an extension gets more than one tensor argument of the function."""
    params = {param.name for param in function.params[1:]}
    for call in calls(function.body):
        base = call.func.base if isinstance(call.func, ir.Attr) else None
        word = last_word(base) if base is not None else ""
        given = {arg.value.id for arg in call.args if isinstance(arg.value, ir.Name)} & params
        if _EXTENSION.fullmatch(word) and any(_LEARNED.fullmatch(name) for name in given) and len(given) > 1:
            return True
    return False


# AMP319


def ignores_grad_output(
    rule: Rule, detector: Detector, module: ir.Module, project: Project, origins: Origins
) -> Iterator[RawFinding]:
    """A backward that returns gradients without looking at the one it is given."""
    for custom in _classes(module, project):
        backward = custom.methods["backward"]
        grads = backward.params[1:]
        if not grads or not _returns_gradients(backward) or custom.marks["backward"] - {"custom_fwd", "custom_bwd"}:
            continue
        names = {param.name for param in grads}
        used = any(name in names for name in _names_read(backward))
        if not used and not _is_left_by_others(custom):
            scaling = {path: None for path, each in project.modules.items() if "GradScaler" in each.words}
            scaled = bool(scaling) and module.path in Programs(project).around(scaling)
            confidence = Confidence.HIGH if scaled else Confidence.LOW
            yield RawFinding(rule, module.path, backward.at, detector.message, confidence, detector.severity)


def _names_read(function: ir.Function) -> Iterator[str]:
    for part in parts(function.body, into=True):
        if isinstance(part, ir.Name):
            yield part.id
        elif isinstance(part, ir.Lambda):
            yield from _names_read(part.function)


def _is_left_by_others(custom: _Custom) -> bool:
    """Whether ``ctx`` leads to a gradient that this class did not make: the next stage of a pipeline left it there."""
    backward = custom.methods["backward"]
    ctx = backward.params[0].name
    own = {name for method in custom.methods.values() for name in _set_on_first(method)} | _OF_CTX
    asked = {call.func.at for call in calls(backward.body) if isinstance(call.func, ir.Attr)}
    named = (part for part in parts(backward.body) if isinstance(part, ir.Attr) and "grad" in part.name)
    return any(
        (_is(part.base, ctx) and part.name not in own)
        or (part.at in asked and isinstance(part.base, ir.Attr) and _is(part.base.base, ctx))
        for part in named
    )


def _set_on_first(function: ir.Function) -> Iterator[str]:
    """The attributes that a method sets on its first parameter, be it ``ctx`` or ``self``."""
    for node in statements(function.body):
        for target in node.targets if isinstance(node, ir.Assign) else ():
            for part in walk(target):
                if isinstance(part, ir.Attr) and function.params and _is(part.base, function.params[0].name):
                    yield part.name


def _is(node: ir.Expr, name: str) -> bool:
    return isinstance(node, ir.Name) and node.id == name


def _returns_gradients(function: ir.Function) -> bool:
    """Whether a value other than None, zeros and constants is returned anywhere."""
    names = Scope(function).names
    returned = (node.value for node in statements(function.body) if isinstance(node, ir.Return))
    return any(value is not None and not _is_nothing(value, names, function) for value in returned)


def _is_nothing(value: ir.Expr, names: Names, within: ir.Function) -> bool:
    if isinstance(value, ir.Starred):
        return _is_nothing(value.value, names, within)
    if isinstance(value, ir.Binary):
        sides = (value.left, value.right)
        empty = [side for side in sides if _is_nothing(side, names, within)]
        spread = value.op == "*" and any(isinstance(side, (ir.Sequence, ir.Call)) for side in empty)  # (None,) * n
        return spread or len(empty) == len(sides)
    if isinstance(value, ir.Sequence):
        return all(_is_nothing(item, names, within) for item in value.items)
    if isinstance(value, ir.Comprehension):
        return _is_nothing(value.element, names, within)
    if isinstance(value, ir.Name):
        sources = [bound.source for bound in names.bound.get(value.id, ())]
        exprs = [source.expr for source in sources if isinstance(source, Assigned)]
        exprs += _put_into(value.id, within)
        return bool(exprs) and all(expr is not None and _is_nothing(expr, names, within) for expr in exprs)
    if isinstance(value, ir.Call) and isinstance(value.func, ir.Attr):
        return value.func.name in ("zeros_like", "zeros", "new_zeros")
    if isinstance(value, ir.Call) and last_word(value.func) in ("tuple", "list"):
        return all(_is_nothing(arg.value, names, within) for arg in value.args)
    return isinstance(value, ir.Const)


def _put_into(name: str, function: ir.Function) -> list[ir.Expr | None]:
    """What a function appends to a list of this name."""
    put = (call for call in calls(function.body) if method(call) in ("append", "extend", "insert"))
    return [
        call.args[-1].value
        for call in put
        if call.args and isinstance(call.func, ir.Attr) and _is(call.func.base, name)
    ]
