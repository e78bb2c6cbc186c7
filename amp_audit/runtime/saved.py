"""How much memory autograd keeps for the backward pass, read off the graph just before that runs.

Nothing is put in between: hooks on saved tensors would turn off autograd's check that they were not written to, and
unpacking one may run a forward again (checkpoint) or bring it back from elsewhere. Only what lies in the graph is
looked at, which changes nothing and keeps nothing alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from amp_audit.runtime.dtypes import short
from amp_audit.runtime.parts import Host, Scene
from amp_audit.trace.schema import Number

_PREFIX = "_raw_saved_"
_TELLS = hasattr(torch._C._autograd.SavedTensor, "data")
"""Whether a saved tensor can be looked at without unpacking it; torch 2.6 cannot."""

Sums = dict[tuple[str, str], list[int]]  # by module and dtype: bytes, tensors


class Saved:
    """A ``Part``: on deep steps Numbers ``saved``, of the moment of the step at which most was kept, and ``allocated``.

    ``maker``: the module in which the operator of an autograd node ran, None when it was not seen. ``owned``: the
    parameters and buffers of all modules, whose memory is there anyway. ``allocates``: whether a GPU that is there is
    a real one.
    """

    def __init__(
        self,
        host: Host,
        scene: Scene,
        maker: Callable[[Any], str | None],
        owned: Callable[[], Iterable[torch.Tensor]],
        allocates: bool = True,
    ) -> None:
        self._host = host
        self._scene = scene
        self._maker = maker
        self._owned = owned
        self._allocates = allocates
        self._deep = False
        self._most = -1
        self._sums: Sums = {}
        self._packed = 0
        self._roots: list[weakref.ref[torch.Tensor]] = []
        scene.before_backward.append(self.before_backward)

    def step_begin(self, *, deep: bool) -> None:
        """A recorded step begins."""
        self._deep = deep
        if deep and not _TELLS:
            self._host.unobserved("bytes saved for backward, which this torch does not tell")
        self._most, self._sums, self._packed, self._roots = -1, {}, 0, []

    def step_end(self) -> None:
        """Tell what was kept at most."""
        for (module, dtype), (amount, count) in sorted(self._sums.items()):
            values: dict[str, float | int | None] = {"bytes": amount, "tensors": count}
            self._host.number(Number("saved", subject=module, dtype=dtype, values=values))
        if self._deep:
            self._tell_allocated()
        if self._packed:
            self._host.unobserved("saved tensors that a hook keeps elsewhere or makes again (checkpoint)", self._packed)
        self._deep = False
        self._most, self._sums, self._packed, self._roots = -1, {}, 0, []

    def _tell_allocated(self) -> None:
        """What each GPU's allocator says, which waits for nothing. The peak is since the program last set it back."""
        if not self._allocates or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return
        for index in range(torch.cuda.device_count()):
            peak = torch.cuda.max_memory_allocated(index)
            if peak:
                values: dict[str, float | int | None] = {"peak": peak, "now": torch.cuda.memory_allocated(index)}
                self._host.number(Number("allocated", subject=f"cuda:{index}", values=values))

    def before_backward(self, roots: Sequence[torch.Tensor], *, nested: bool) -> None:
        """A backward begins; a ``nested`` one inside another, which has let go of what it needs no more."""
        if not self._deep or not _TELLS:
            return
        references = [weakref.ref(root) for root in roots]
        self._roots = [*self._roots, *references] if nested else references
        alive = [root for reference in self._roots if (root := reference()) is not None]
        sums, packed = self._look(alive)
        total = sum(amount for amount, _ in sums.values())
        if total > self._most:
            self._most, self._sums, self._packed = total, sums, packed

    def _look(self, roots: Sequence[torch.Tensor]) -> tuple[Sums, int]:
        """What lies in the graph above some tensors, each piece of memory once; and how many tensors do not."""
        seen = {_storage(tensor)[0] for tensor in self._standing()}
        sums: Sums = {}
        packed = 0
        for node in nodes(root.grad_fn for root in roots):
            module: str | None = None
            for kept in held(node):
                found = list(plain(kept))
                packed += not found
                for tensor in found:
                    storage, amount = _storage(tensor)
                    if storage in seen:
                        continue
                    seen.add(storage)
                    if module is None:
                        module = self._maker(node) or ""
                    row = sums.setdefault((module, short(tensor.dtype)), [0, 0])
                    row[0] += amount
                    row[1] += 1
        return sums, packed

    def _standing(self) -> Iterator[torch.Tensor]:
        for tensor in self._owned():
            yield from plain(tensor)
        for optimizer in self._scene.optimizers():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    yield from plain(parameter)


def nodes(roots: Iterable[Any]) -> Iterator[Any]:
    """The nodes of an autograd graph, each once."""
    seen: set[Any] = set()  # holding the nodes, so that no other one comes to have the id of one that was seen
    queue = [root for root in roots if root is not None]
    while queue:
        node = queue.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        queue.extend(child for child, _ in node.next_functions if child is not None)


_names: dict[type, tuple[str, ...]] = {}


def held(node: Any) -> Iterator[Any]:
    """What a node keeps, as it keeps it: tensors, or what a hook made of them. Nothing when it was let go of."""
    kind = type(node)
    names = _names.get(kind)
    if names is None:
        names = _names[kind] = tuple(name for name in dir(kind) if name.startswith(_PREFIX))
    for name in names:
        try:
            kept = getattr(node, name)
        except RuntimeError:  # let go of: its backward ran
            continue
        for one in kept if isinstance(kept, (tuple, list)) else (kept,):
            data = one.data if one is not None else None
            if data is not None:
                yield data
    for value in getattr(node, "__dict__", {}).values():  # what a function of the program keeps on its ctx
        if isinstance(value, torch.Tensor):
            yield value


def plain(kept: Any) -> Iterator[torch.Tensor]:
    """The tensors with memory of their own in something kept: of what wraps others (vmap, DTensor) those it wraps."""
    if isinstance(kept, (tuple, list)):
        for item in kept:
            yield from plain(item)
    elif isinstance(kept, torch.Tensor):
        if torch._C._functorch.is_functorch_wrapped_tensor(kept):
            yield from plain(torch._C._functorch.get_unwrapped(kept))
        elif is_traceable_wrapper_subclass(kept):
            for name in kept.__tensor_flatten__()[0]:
                yield from plain(getattr(kept, name))
        elif kept.layout is torch.strided:
            yield kept


def _storage(tensor: torch.Tensor) -> tuple[int, int]:
    """The address of a tensor's storage object, and its bytes, all of which the tensor keeps alive."""
    storage = tensor.untyped_storage()
    return int(storage._cdata), int(storage.nbytes())
