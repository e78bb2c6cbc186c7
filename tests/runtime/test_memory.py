"""What is known of memory follows where tensors lie, not which objects they are."""

from __future__ import annotations

import torch

from amp_audit.runtime.memory import Memory, extent


def test_extents_are_the_bytes_a_tensor_can_touch() -> None:
    base = torch.zeros(4, 6, dtype=torch.float16)
    for view in (base, base.t(), base[1], base[:, 2], base[1:3, 1:4], base[::2]):
        addresses = {(view.data_ptr() - base.data_ptr()) // 2 + offset for offset in _offsets(view)}
        assert extent(view) == (2 * min(addresses), 2 * (max(addresses) + 1))


def _offsets(view: torch.Tensor) -> set[int]:
    grids = torch.meshgrid(*(torch.arange(size) for size in view.shape), indexing="ij")
    total = sum(grid * stride for grid, stride in zip(grids, view.stride(), strict=True))
    return set(total.flatten().tolist())


def test_parts_of_a_bucket_are_told_apart() -> None:
    memory: Memory[str] = Memory()
    bucket = torch.zeros(10)
    first, second = bucket[:4].view(2, 2), bucket[4:]
    memory.write(first, "first")
    memory.write(second, "second")
    assert (memory.read(first.t()), memory.read(second), memory.read(bucket[5:6])) == ("first", "second", "second")
    memory.write(first, None)
    assert (memory.read(first), memory.read(second)) == (None, "second")
    memory.write(bucket, "whole")
    assert (memory.read(first), memory.read(second)) == ("whole", "whole")
    assert memory.read(torch.zeros(10)) is None


def test_the_latest_write_into_a_part_is_the_one_that_counts() -> None:
    memory: Memory[int] = Memory()
    whole = torch.zeros(6, 2)
    memory.write(whole, 1)
    memory.write(whole[3:4], 2)
    assert [memory.read(row) for row in whole] == [1, 1, 1, 2, 1, 1]
    assert memory.read(whole) == 2
