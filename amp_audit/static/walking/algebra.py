"""The algebra of abstract values: operators, comparisons, displays and subscripts."""

from __future__ import annotations

from collections.abc import Hashable

from amp_audit.records import replace
from amp_audit.static.binding.project import External
from amp_audit.static.walking.values import (
    NONE,
    Condition,
    Items,
    Literal,
    Method,
    Parameters,
    Scale,
    Symbol,
    Table,
    Tensor,
    Value,
    among,
    indexed,
    is_gradient,
    is_there,
    is_volatile,
    key_of,
    short,
)
from amp_audit.static.walking.world import truth_of

SMALLEST_SCALE = 128.0
"""A loss multiplied by at least this much is taken to carry a loss scale; weights of loss terms are smaller."""


def subscript(base: Value, index: Value) -> Value:
    number = index.value if isinstance(index, Literal) else None
    if isinstance(base, Items) and isinstance(number, int) and -len(base.items) <= number < len(base.items):
        return base.items[number]
    if isinstance(base, Table) and isinstance(index, Literal):
        found = base.get(index.value)
        if found is not None:
            return found
    if isinstance(base, Tensor):
        return base
    if isinstance(base, Parameters) or is_gradient(base):
        return base
    volatile = is_volatile(base) or is_volatile(index)
    text = f"{base.text}[{key_of(index)}]" if isinstance(base, Symbol) and base.text else ""
    param = isinstance(base, Symbol) and base.param
    giver = base.giver if isinstance(base, Symbol) else None
    return Symbol(indexed(key_of(base), key_of(index)), text, volatile, param, giver)


def display(values: list[Value]) -> Value:
    spread: list[Value] = []
    for value in values:
        if isinstance(value, Method) and value.name == "*" and isinstance(value.base, Items):
            spread += value.base.items
        elif isinstance(value, Method) and value.name == "*" and isinstance(value.base, Parameters):
            spread.append(value.base)
        else:
            spread.append(value)
    return Items(tuple(spread))


def merged(table: Table, value: Value) -> Table:
    if not isinstance(value, Table):
        return replace(table, open=True)
    for key, item in value.items:
        table = table.put(key, item)
    return replace(table, open=table.open or value.open)


def with_item(table: Table, key: Value, value: Value) -> Table:
    return table.put(key.value, value) if isinstance(key, Literal) else replace(table, open=True)


def combine(op: str, left: Value, right: Value) -> Value:
    if op == "/" and isinstance(right, Scale) and isinstance(left, Literal):
        return replace(right, inverse=not right.inverse)
    if op == "*" and isinstance(left, Scale) and isinstance(right, (Literal, Symbol)):
        return left
    if op == "*" and isinstance(right, Scale) and isinstance(left, (Literal, Symbol)):
        return right
    if isinstance(left, Tensor):
        return _of_tensors(op, left, right) if isinstance(right, Tensor) else _with_tensor(op, left, right)
    if isinstance(right, Tensor):
        return _with_tensor(op, right, left)
    if isinstance(left, Items) and isinstance(right, Items) and op == "+":
        return Items((*left.items, *right.items))
    if isinstance(left, Parameters) or isinstance(right, Parameters):
        parts = [v.owners for v in (left, right) if isinstance(v, Parameters)]
        return Parameters(frozenset().union(*parts) if len(parts) == 2 else frozenset())
    if isinstance(left, Literal) and isinstance(right, Literal):
        return _fold(op, left.value, right.value)
    volatile = is_volatile(left) or is_volatile(right)
    return Symbol(short(f"({key_of(left)} {op} {key_of(right)})"), volatile=volatile)


def _fold(op: str, left: object, right: object) -> Value:
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        if op == "+":
            return Literal.of(left + right)
        if op == "-":
            return Literal.of(left - right)
        if op == "*" and abs(left) < 1e9 and abs(right) < 1e9:
            return Literal.of(left * right)
        if op == "/" and right:
            return Literal.of(left / right)
        if op == "%" and right:
            return Literal.of(left % right)
        if op == "**" and abs(left) <= 10 and 0 <= right <= 40:
            return Literal.of(left**right)
    return Symbol(short(f"({left!r} {op} {right!r})"))


def _with_tensor(op: str, tensor: Tensor, other: Value) -> Tensor:
    """What an operator makes of a tensor and something else."""
    scale = _may_be_scale(other)
    doubt = tensor.doubt or (op == "*" and scale)
    carried, cut = None if doubt else tensor.scaled, tensor.cut and not scale
    divided, taken = _divisors(op, [tensor], other), _taken(op, [tensor], other)
    return Tensor(tensor.owners, tensor.dtype, carried, doubt, False, divided, tensor.ran, tensor.plain, cut, taken)


def _of_tensors(op: str, left: Tensor, right: Tensor) -> Tensor:
    """What an operator makes of two tensors."""
    both = [left, right]
    scaled = {left.scaled, right.scaled}
    dtypes = {tensor.dtype for tensor in both if tensor.dtype}
    added = op in ("+", "-") and len(scaled) == 2 and all(t.scaled is not None or t.owners for t in both)
    if added:
        scaled.discard(None)
    doubt = left.doubt or right.doubt or len(scaled) > 1
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    plain = (added and not doubt) or left.plain or right.plain
    carried, divided = None if doubt else scaled.pop(), _divisors(op, both, None)
    owners, ran, cut = left.owners | right.owners, left.ran | right.ran, left.cut and right.cut
    return Tensor(owners, dtype, carried, doubt, False, divided, ran, plain, cut, _taken(op, both, None))


def _taken(op: str, tensors: list[Tensor], other: Value | None) -> str:
    """What is left of gradients that carry the scale: a factor or divisor may take it off, unless it is a number, or
    stands before a penalty and is not called a scale.
    """
    kind = max(tensor.taken for tensor in tensors)
    if not kind or op in ("+", "-"):
        return kind
    if op == "**" or (len(tensors) == 2 and op == "*" and all(tensor.taken for tensor in tensors)):
        return "penalty"
    weight = isinstance(other, Literal) or (kind == "penalty" and other is not None)
    return kind if weight and not _may_be_scale(other) else ""


def descaled(op: str, left: Value, right: Value) -> Scale | None:
    """The scale by which something that carries it, or may carry it, is divided, or which is divided by its norm."""
    tensor, scale = (right, left) if isinstance(left, Scale) else (left, right)
    if not isinstance(tensor, Tensor) or not isinstance(scale, Scale):
        return None
    if tensor.scaled != scale.scaler and not tensor.doubt:
        return None
    undone = (op == "*" and scale.inverse) or (op == "/" and not scale.inverse and right is scale)
    compared = op == "/" and left is scale and not scale.inverse and tensor.cut
    return scale if undone or compared else None


def _divisors(op: str, tensors: list[Tensor], other: Value | None) -> frozenset[Hashable]:
    """What the result may have been divided by: a sum only by what all its terms were."""
    if op in ("+", "-"):
        return frozenset.intersection(*(tensor.divided for tensor in tensors))
    own = {factor(other)} if other is not None and op in ("/", "//", "*") else {"tensor"} if op == "/" else set()
    return frozenset(own).union(*(tensor.divided for tensor in tensors))


def factor(value: Value) -> Hashable:
    """What names a divisor or a modulus: an int itself, else a key."""
    number = value.value if isinstance(value, Literal) else None
    return number if isinstance(number, int) and not isinstance(number, bool) else key_of(value)


def _may_be_scale(value: Value | None) -> bool:
    """Whether a factor may be a loss scale: read from a scaler, or kept by hand, by its name or its size."""
    if isinstance(value, Scale):
        return True
    if isinstance(value, Symbol):
        return "scale" in f"{value.text} {value.key}".lower()
    number = value.value if isinstance(value, Literal) else None
    return isinstance(number, (int, float)) and not isinstance(number, bool) and abs(number) >= SMALLEST_SCALE


def unary(op: str, value: Value) -> Value:
    if op == "not":
        condition = truth_of(value)
        return (
            Literal.of(not condition)
            if isinstance(condition, bool)
            else replace(condition, negated=not condition.negated)
        )
    if isinstance(value, Tensor):
        return value
    if op == "-" and isinstance(value, Literal) and isinstance(value.value, (int, float)):
        return Literal.of(-value.value)
    return Symbol(short(f"{op}{key_of(value)}"), volatile=is_volatile(value))


def comparison(op: str, left: Value, right: Value) -> Value:
    if op in ("is", "is not") and right == NONE:
        return _none_test(left, op == "is not")
    if op in ("==", "is"):
        return equality(left, right)
    if op in ("!=", "is not"):
        return unary("not", equality(left, right))
    if op in ("in", "not in") and isinstance(left, Literal) and isinstance(right, Items) and _all_literal(right):
        return Literal.of((left in right.items) is (op == "in"))
    if isinstance(left, Literal) and isinstance(right, Literal):
        return _ordered(op, left.value, right.value)
    volatile = is_volatile(left) or is_volatile(right)
    if op in ("in", "not in") and isinstance(right, Items) and right.items and _all_literal(right):
        return Condition(short(f"{key_of(left)}{among(right.items)}"), op == "not in", volatile)
    if op == "not in":
        return Condition(short(f"{key_of(left)} in {key_of(right)}"), True, volatile)
    return Condition(short(f"{key_of(left)} {op} {key_of(right)}"), volatile=volatile)


def _all_literal(items: Items) -> bool:
    return all(isinstance(item, Literal) for item in items.items)


def _ordered(op: str, left: object, right: object) -> Value:
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return Literal.of({"<": left < right, "<=": left <= right, ">": left > right}.get(op, left >= right))
    return Condition(short(f"{left!r} {op} {right!r}"))


def _none_test(value: Value, negated: bool) -> Value:
    if isinstance(value, Literal):
        return Literal.of((value.value is None) is not negated)
    if isinstance(value, Symbol):
        return Condition(f"{value.key} is None", negated, value.volatile)
    if isinstance(value, (Condition, Method)) or (isinstance(value, External) and not is_there(value)):
        return Condition(f"{key_of(value)} is None", negated, is_volatile(value))
    return Literal.of(negated)


def equality(left: Value, right: Value) -> Value:
    if isinstance(left, Literal) and isinstance(right, Literal):
        return Literal.of(left.value == right.value)
    if isinstance(left, External) and isinstance(right, External) and is_there(left) and is_there(right):
        return Literal.of(left == right)
    if isinstance(left, Literal):
        left, right = right, left
    if right == NONE and isinstance(left, External) and is_there(left):
        return Literal.of(False)  # a dtype that a function chose, or None: ``dtype == torch.float16``
    volatile = is_volatile(left) or is_volatile(right)
    return Condition(short(f"{key_of(left)} == {key_of(right)}"), volatile=volatile)
