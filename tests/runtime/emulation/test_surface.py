"""What a program written for CUDA asks torch for, and is answered, on a machine without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.emulation.emulating import emulate

torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("there is a CUDA device: it is used, not emulated", allow_module_level=True)


def test_the_device_is_there() -> None:
    told = emulate("""
        tell(torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.current_device())
        tell(torch.cuda.get_device_name(), list(torch.cuda.get_device_capability()))
        tell(torch.cuda.get_device_properties(0).total_memory, torch.cuda.is_bf16_supported())
        tell(torch.device("cuda"), torch.backends.cuda.is_built(), torch.backends.cudnn.is_available())
        torch.cuda.set_device(0); torch.cuda.synchronize(); torch.cuda.empty_cache()
        tell(refused(lambda: torch.cuda.set_device(1)))
    """)
    assert told == [
        [True, 1, 0],
        ["NVIDIA A100-SXM4-40GB", [8, 0]],
        [40 * 2**30, True],
        ["cuda", True, True],
        ["RuntimeError: CUDA error: invalid device ordinal"],
    ]


def test_chips_differ() -> None:
    code = """
        tell(torch.cuda.get_device_name(), list(torch.cuda.get_device_capability()))
        tell(torch.cuda.is_bf16_supported(including_emulation=False), torch.cuda.is_tf32_supported())
    """
    assert emulate(code, "cuda:sm75") == [["Tesla T4", [7, 5]], [False, False]]
    assert emulate(code, "cuda:9.0") == [["NVIDIA H100 80GB HBM3", [9, 0]], [True, True]]


@pytest.mark.parametrize(
    "make",
    [
        "torch.ones(2, 3).cuda()",
        "torch.ones(2, 3).to('cuda')",
        "torch.ones(2, 3).to(device='cuda:0', non_blocking=True)",
        "torch.ones(2, 3, device='cuda')",
        "torch.ones(2, 3, device=torch.device('cuda', 0))",
        "torch.tensor([[1., 1, 1], [1, 1, 1]], device=0)",
        "torch.as_tensor([[1., 1, 1], [1, 1, 1]], device='cuda')",
        "torch.full((2, 3), 1.0, pin_memory=True).cuda(non_blocking=True)",
        "torch.cuda.FloatTensor(2, 3).fill_(1)",
        "torch.ones(2, 3).type(torch.cuda.FloatTensor)",
        "torch.ones(2, 3).type('torch.cuda.FloatTensor')",
        "torch.empty_like(torch.ones(2, 3), device='cuda').fill_(1)",
        "torch.zeros(2, 3, device='cuda').new_ones(2, 3)",
        "nn.Parameter(torch.ones(2, 3)).cuda()",
    ],
)
def test_tensors_come_to_the_device(make: str) -> None:
    told = emulate(f"""
        x = {make}
        tell(x.device, x.is_cuda, x.get_device(), x.type(), x.untyped_storage().device)
        tell(x.cpu().device, x.detach().cpu().numpy().tolist(), x.tolist(), x.sum().item())
        tell((x + 1).device, x.to("cuda") is x, x[0].device, x.view(6).is_cuda)
    """)
    assert told[0] == ["cuda:0", True, 0, "torch.cuda.FloatTensor", "cuda:0"]
    assert told[1] == ["cpu", [[1.0] * 3] * 2, [[1.0] * 3] * 2, 6.0]
    assert told[2] == ["cuda:0", True, "cuda:0", True]


def test_devices_do_not_mix() -> None:
    told = emulate("""
        x, y = torch.ones(3, device="cuda"), torch.ones(3)
        tell(refused(lambda: x + y))
        tell(refused(lambda: F.linear(x[None], y[None])))
        tell(refused(lambda: x.numpy()))
        tell(refused(lambda: nn.Embedding(4, 2).cuda()(torch.tensor([1]))))
        tell((x + torch.tensor(2.0)).tolist(), x[torch.tensor([0, 2])].tolist())
        y.copy_(x * 3)
        tell(y.tolist(), y.device)
    """)
    mixed = (
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
    )
    assert told[0][0].startswith(mixed)
    assert told[1][0].startswith(mixed)
    assert told[2][0].startswith("TypeError: can't convert cuda:0 device type tensor to numpy")
    assert told[3][0].startswith(mixed)
    assert told[4:] == [[[3.0] * 3, [1.0, 1.0]], [[3.0] * 3, "cpu"]]


def test_a_module_keeps_its_parameters() -> None:
    """``.cuda()`` moves the memory of parameters that an optimizer may already have, and no others."""
    told = emulate("""
        model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        before = [id(p) for p in model.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        model.cuda()
        tell(before == [id(p) for p in model.parameters()], {type(p).__name__ for p in model.parameters()})
        weight = model[0].weight.detach().clone()
        model(torch.randn(4, 3, device="cuda")).square().sum().backward()
        optimizer.step()
        tell(bool((model[0].weight - weight).abs().sum() >= 0), model[0].weight.grad.device)
        tell(model[1].running_mean.device, model.cpu()[0].weight.device)
    """)
    assert told == [[True, "{'Parameter'}"], [True, "cuda:0"], ["cuda:0", "cpu"]]


def test_streams_events_and_memory() -> None:
    told = emulate("""
        stream, one, other = torch.cuda.Stream(), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
        one.record()
        with torch.cuda.stream(stream):
            tell(torch.cuda.current_stream() == stream)
            x = torch.ones(250, device="cuda"); x.record_stream(stream)
        torch.cuda.current_stream().wait_stream(stream)
        other.record(); other.synchronize()
        tell(one.elapsed_time(other) >= 0, torch.cuda.current_stream() == torch.cuda.default_stream())
        tell(torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
        y = torch.ones(250, device="cuda"); tell(torch.cuda.memory_allocated()); del y
        tell(torch.cuda.memory_allocated(), torch.cuda.memory_reserved() >= 1000, torch.cuda.mem_get_info()[1])
        torch.cuda.reset_peak_memory_stats()
        tell(refused(torch.cuda.CUDAGraph))
    """)
    assert told[:5] == [[True], [True, True], [1000, 1000], [2000], [1000, True, 40 * 2**30]]
    assert "amp-audit cannot emulate CUDA graphs" in told[5][0]


def test_random_numbers_have_their_own_stream() -> None:
    told = emulate("""
        def both():
            return torch.rand(2).tolist() + torch.rand(2, device="cuda").tolist()
        torch.manual_seed(3); first = both()
        torch.manual_seed(3); tell(both() == first)
        torch.manual_seed(3); torch.rand(100, device="cuda"); tell(torch.rand(2).tolist() == first[:2])
        torch.cuda.manual_seed_all(3); state = torch.cuda.get_rng_state(); x = torch.randn(3, device="cuda")
        torch.cuda.set_rng_state(state); tell(bool((torch.randn(3, device="cuda") == x).all()))
        generator = torch.Generator(device="cuda").manual_seed(5)
        y = torch.randint(9, (4,), generator=generator, device="cuda")
        tell(generator.device, isinstance(generator, torch.Generator), y.device)
        torch.manual_seed(3); F.dropout(torch.ones(50, device="cuda")); tell(torch.rand(2).tolist() == first[:2])
    """)
    assert told == [[True], [True], [True], ["cuda", True, "cuda:0"], [True]]


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    told = emulate(
        """
        model = nn.Linear(2, 2).cuda()
        torch.save({"model": model.state_dict(), "n": 3}, "x.pt")
        for where in (None, "cpu", "cuda", torch.device("cuda:0"), {"cuda:0": "cpu"}, lambda storage, place: storage):
            back = torch.load("x.pt", map_location=where)["model"]["weight"]
            tell(back.device, bool((back.cpu() == model.weight.cpu()).all()))
        import copy
        twin = copy.deepcopy(model)
        with torch.no_grad(): twin.weight.zero_()
        tell(twin.weight.device, bool(model.weight.any()))
    """,
        folder=tmp_path,
    )
    assert [place for place, _ in told] == ["cuda:0", "cpu", "cuda:0", "cuda:0", "cpu", "cpu", "cuda:0"]
    assert all(same for _, same in told)
    assert torch.load(tmp_path / "x.pt", map_location="cpu")["n"] == 3


def test_views_share_memory() -> None:
    told = emulate("""
        x = torch.zeros(2, 3, device="cuda")
        x[1, :2] = 5; x.t()[2, 0] = 7; x.view(6)[1:2].add_(1)
        tell(x.tolist(), x[1].untyped_storage().data_ptr() == x.untyped_storage().data_ptr(), x[1]._is_view())
        y = torch.empty(0, device="cuda"); torch.add(x, 1, out=y)
        tell(y.tolist())
        y.resize_(2, 4); tell(y.view(-1)[:6].tolist())
        w = torch.ones(4, device="cuda", requires_grad=True); v = w * 1
        v[:2] *= 3; v.sum().backward(); tell(w.grad.tolist())
        z = torch.view_as_complex(torch.tensor([[1.0, 2]], device="cuda")).conj(); tell(str(z.cpu().tolist()))
        tell(torch.empty(0, device="cuda").set_(x).shape == x.shape)
    """)
    assert told[0] == [[[0, 1, 7], [5, 5, 0]], True, True]
    assert told[1:3] == [[[[1, 2, 8], [6, 6, 1]]], [[1, 2, 8, 6, 6, 1]]]
    assert told[3:] == [[[3, 3, 1, 1]], ["[(1-2j)]"], [True]]


def test_a_loader_pins(tmp_path: Path) -> None:
    told = emulate("""
        data = torch.utils.data.TensorDataset(torch.arange(8.0), torch.arange(8))
        for workers in (0, 2):
            loader = torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True, num_workers=workers)
            total = sum(y.cuda(non_blocking=True).sum().item() for _, y in loader)
            tell(*[bool(x.is_pinned()) for x, _ in loader], total)
    """)
    assert told == [[True, True, 28], [True, True, 28]]


def test_layers_of_many_kinds_run() -> None:
    told = emulate("""
        x = torch.ones(4, 2, device="cuda")
        tell(nn.DataParallel(nn.Linear(2, 2)).cuda()(torch.ones(4, 2)).device)
        packed = nn.utils.rnn.pack_padded_sequence(torch.randn(2, 5, 3).cuda(), torch.tensor([5, 3]), batch_first=True)
        tell(nn.LSTM(3, 4, batch_first=True).cuda()(packed)[0].data.device)
        probabilities = torch.randn(5, 2, 4, device="cuda").log_softmax(-1)
        lengths = torch.tensor([5, 5]), torch.tensor([3, 3])
        tell(F.ctc_loss(probabilities, torch.randint(1, 4, (2, 3)).cuda(), *lengths).device)
        tell(torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()).cuda())(x).device)
        tell(torch.compile(nn.Linear(2, 2).cuda(), fullgraph=True)(x).device, torch.vmap(torch.sin)(x).device)
        wide = torch.randn(3, device="cuda", dtype=torch.float64, requires_grad=True)
        tell(torch.autograd.gradcheck(torch.sin, wide))
        tell(refused(lambda: torch.ones(1, device="cuda:1")), refused(lambda: x.to("cuda:3")))
        model = nn.BatchNorm1d(2).cuda().half(); model(torch.randn(8, 2, device="cuda").half() + 5)
        tell(model.running_mean.dtype, bool((model.running_mean > 0.3).all()))
    """)
    ordinal = "RuntimeError: CUDA error: invalid device ordinal"
    assert told[:6] == [["cuda:0"], ["cuda:0"], ["cuda:0"], ["cuda:0"], ["cuda:0", "cuda:0"], [True]]
    assert told[6:] == [[ordinal, ordinal], ["torch.float16", True]]


def test_old_names_and_default_devices() -> None:
    told = emulate("""
        tell(*[isinstance(torch.ones(1, device=place), torch.cuda.FloatTensor) for place in ("cuda", "cpu")])
        torch.set_default_device("cuda"); tell(torch.ones(1).device, torch.get_default_device())
        torch.set_default_device(None)
        with torch.device("cuda"): tell(nn.Linear(1, 1).weight.device)
        torch.set_default_tensor_type("torch.cuda.FloatTensor"); tell(torch.ones(1).device)
    """)
    assert told == [[True, False], ["cuda:0", "cuda:0"], ["cuda:0"], ["cuda:0"]]
