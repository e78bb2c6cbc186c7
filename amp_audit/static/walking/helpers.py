"""Functions that make no event by the words in them, and are followed all the same where they are called.

What they are told by stands in a few words of a short body: a loss that is made anew, weights or gradients that are
written by hand, a penalty on weights, a model that is run. Code that calls them is not worth a path for that alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from amp_audit.static.source import ir
from amp_audit.static.source.literals import is_literally
from amp_audit.static.source.names import is_scheduler
from amp_audit.static.source.traverse import last_word, parts, statements, words_in

if TYPE_CHECKING:
    from amp_audit.static.walking.world import World

_SHORT, _LONG = 24, 60
_WEIGHTS = frozenset({"parameters", "named_parameters", "buffers", "trainable_parameters"})
_PENALTIES = frozenset({"norm", "pow", "square", "abs"})
GENERIC = frozenset({"singledispatch", "singledispatchmethod"})
_WRITES = frozenset({"copy_", "mul_", "add_", "sub_", "div_", "lerp_", "fill_", "addcmul_", "data"})


def helps(function: ir.Function) -> bool:
    """Whether a short function gives a new leaf back, writes weights or penalises large ones, or goes through
    gradients.
    """
    words = function.words
    uses = not words.isdisjoint(_WEIGHTS) and not words.isdisjoint(_WRITES | _PENALTIES)
    if not uses and words.isdisjoint(("grad", "tensor", "as_tensor", "Variable")):
        return False
    return _is_within(function, _SHORT) and (uses or "grad" in words or _gives_leaf(function))


def _is_within(function: ir.Function, most: int) -> bool:
    """Whether a function is a helper by its size."""
    return sum(1 for _ in statements(function.body)) <= most


def _gives_leaf(function: ir.Function) -> bool:
    """``torch.tensor(a + b, requires_grad=True)``."""
    calls = (part for part in parts(function.body) if isinstance(part, ir.Call))
    return any(arg.keyword == "requires_grad" and is_literally(arg.value, True) for call in calls for arg in call.args)


def dispatched(body: Sequence[ir.Stmt]) -> Iterator[tuple[int, tuple[ir.Function, ...]]]:
    """The functions of a module or class that ``functools.singledispatch`` makes generic, by their identities, with
    those that are registered beside them for one type each.
    """
    functions = [node for node in body if isinstance(node, ir.Function)]
    for function in functions:
        if any(map(GENERIC.intersection, map(words_in, function.decorators))):
            yield id(function), tuple(other for other in functions if _is_registered(other, function.name))


def _is_registered(function: ir.Function, name: str) -> bool:
    """``@name.register`` or ``@name.register(type)``."""
    targets = (each.func if isinstance(each, ir.Call) else each for each in function.decorators)
    return any(
        isinstance(each, ir.Attr) and each.name == "register" and last_word(each.base) == name for each in targets
    )


def called_names(function: ir.Function) -> frozenset[tuple[str, str]]:
    """What a function that gives something back calls, as (name, "") or (name, attribute); nothing of a long one."""
    returns = any(isinstance(node, ir.Return) and node.value is not None for node in statements(function.body))
    return frozenset(_called(function)) if returns and _is_within(function, _LONG) else frozenset()


def _called(function: ir.Function) -> Iterator[tuple[str, str]]:
    for part in parts(function.body):
        func = part.func if isinstance(part, ir.Call) else None
        if isinstance(func, ir.Name):
            yield func.id, ""
        elif isinstance(func, ir.Attr) and isinstance(func.base, ir.Name):
            yield func.base.id, func.name


def schedules_at(world: World, at: int) -> tuple[str, int]:
    """Where schedules are advanced by the step at ``at``: there, or where the helper is called that does nothing else,
    however many they are.
    """
    place = (world.frame.module.path, at)
    for depth in range(len(world.frames) - 1, 0, -1):
        frame = world.frames[depth]
        if frame.function is None or not frame.calls or not all(map(_advances, frame.function.body)):
            break
        place = (world.frames[depth - 1].module.path, frame.calls[-1])
    return place


def _advances(node: ir.Stmt) -> bool:
    """``self.scheduler.step()``, be it where there is one."""
    if isinstance(node, ir.If):
        return all(map(_advances, node.body)) and not node.orelse
    call = node.value if isinstance(node, ir.Evaluate) else None
    func = call.func if isinstance(call, ir.Call) else None
    return isinstance(func, ir.Attr) and func.name == "step" and is_scheduler(last_word(func.base))
