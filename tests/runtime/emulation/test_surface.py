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
        tell(refused(lambda: torch.equal(x, y)))
        tell(refused(lambda: y[torch.tensor([0]).cuda()]))
        tell(refused(lambda: x.index_put_((torch.tensor([0, 1]),), torch.ones(2))))
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
    assert told[4][0].startswith(mixed)
    assert told[5] == [
        "RuntimeError: indices should be either on cpu or on the same device as the indexed tensor (cpu)"
    ]
    assert told[6][0].startswith(mixed)
    assert told[7:] == [[[3.0] * 3, [1.0, 1.0]], [[3.0] * 3, "cpu"]]


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
    """)
    assert told[:5] == [[True], [True, True], [1000, 1000], [2000], [1000, True, 40 * 2**30]]


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
    assert told == [[True], [True], [True], ["cuda:0", True, "cuda:0"], [True]]


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


def test_memory_is_told_and_runs_out() -> None:
    told = emulate("""
        x = torch.ones(250, device="cuda")
        stats = torch.cuda.memory_stats()
        names = "allocated_bytes.all.current", "allocation.all.current", "active_bytes.large_pool.peak"
        tell(*[stats[name] for name in names])
        tell("CUDA memory summary" in torch.cuda.memory_summary(), torch.cuda.memory_snapshot())
        try:
            torch.empty(1 << 45, device="cuda")
        except torch.cuda.OutOfMemoryError as error:
            tell(str(error)[:58])
        tell(torch.cuda.memory.get_allocator_backend(), torch.cuda.nccl.version()[0])
        torch.cuda.memory._record_memory_history(max_entries=10)
    """)
    assert told == [
        [1000, 1, 1000],
        [True, []],
        ["CUDA out of memory. Tried to allocate 131072.00 GiB. (Emul"],
        ["native", 2],
    ]


def test_profilers_are_answered() -> None:
    told = emulate("""
        tell(torch.cuda.nvtx.range_push("a"), torch.cuda.nvtx.range_push("b"), torch.cuda.nvtx.range_pop())
        torch.cuda.nvtx.mark("here")
        with torch.cuda.nvtx.range("c"): torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("d"))
        torch.cuda.profiler.start(); torch.cuda.profiler.stop()
        tell(torch.backends.cuda.cufft_plan_cache.max_size, torch.backends.cuda.cufft_plan_cache.size)
        tell(torch.get_device_module().__name__)
        torch._dynamo.reset()
    """)
    assert told == [[0, 1, 1], [4096, 0], ["torch.cuda"]]


def test_views_of_pinned_memory_are_pinned() -> None:
    told = emulate("""
        x = torch.zeros(4).pin_memory()
        tell(x[:2].is_pinned(), x.view(2, 2).is_pinned(), x.clone().is_pinned(), x.pin_memory() is x)
        tell(refused(x.cuda().pin_memory))
    """)
    refusal = "RuntimeError: cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned"
    assert told == [[True, True, False, True], [refusal]]


def test_generators_are_of_a_device() -> None:
    """The state of CUDA's own is its seed and an offset, which each operator moves on."""
    told = emulate("""
        import copy
        tell(refused(lambda: torch.randn(2, device="cuda", generator=torch.Generator())))
        tell(refused(lambda: torch.randperm(2, generator=torch.Generator("cuda"))))
        torch.cuda.manual_seed(7); torch.rand(2, device="cuda")
        own = torch.cuda.default_generators[0]
        tell(torch.cuda.get_rng_state().tolist(), own.initial_seed(), own.get_offset(), str(own.device))
        later = own.clone_state(); x = torch.rand(2, device="cuda")
        own.set_state(later.get_state()); tell(torch.equal(x, torch.rand(2, device="cuda")))
        own.set_offset(4); tell(torch.equal(x, torch.rand(2, device="cuda")), refused(lambda: own.set_state(x)))
        mine = torch.Generator("cuda").manual_seed(3); twin = copy.deepcopy(mine)
        tell(str(twin.device), torch.equal(*(torch.rand(3, device="cuda", generator=one) for one in (mine, twin))))
        draws = torch.stack([torch.rand(4, device="cuda") for _ in range(50)])
        tell(len(draws.unique()))
    """)
    wrong = "RuntimeError: Expected a '{}' device type for generator but found '{}'"
    assert told == [
        [wrong.format("cuda", "cpu")],
        [wrong.format("cpu", "cuda")],
        [[7, *[0] * 7, 4, *[0] * 7], 7, 4, "cuda:0"],
        [True],
        [True, "RuntimeError: RNG state is wrong size"],
        ["cuda:0", True],
        [200],
    ]


def test_memory_given_back_says_so() -> None:
    """Sharded modules free storages by resizing them, and ask how large they are."""
    told = emulate("""
        x = torch.arange(4.0, device="cuda"); storage = x.untyped_storage()
        storage.resize_(0); tell(storage.size(), len(storage), storage.data_ptr(), x._typed_storage()._size())
        storage.resize_(16); x.fill_(3); tell(storage.nbytes(), x.untyped_storage().size(), x.tolist())
        tell(refused(lambda: storage.resize_(64)))
    """)
    assert told[:2] == [[0, 0, 0, 0], [16, 16, [3.0] * 4]]
    assert "amp-audit cannot emulate a storage on the device that grows" in told[2][0]


def test_a_program_ends_well() -> None:
    """What torch calls when the process exits is still there then, though Python's memory is gone (and overwritten)."""
    emulate(
        """
        w = torch.ones(4, device="cuda", requires_grad=True); (w * 2).sum().backward()
        """,
        environment={"PYTHONMALLOC": "debug", "MALLOC_PERTURB_": "165"},
    )


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the system does not tell states of threads")
def test_threads_come_to_rest_before_the_end() -> None:
    """Threads that want the interpreter's lock, which this one does not give away of itself, have had it."""
    told = emulate("""
        import ctypes
        from amp_audit.runtime.rest import await_rest
        seen = []
        entry = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda argument: seen.append(argument))
        library = ctypes.PyDLL(None)
        library.pthread_create.argtypes = [ctypes.c_void_p, ctypes.c_void_p, type(entry), ctypes.c_void_p]
        sys.setswitchinterval(1000)
        handles = (ctypes.c_ulong * 8)()
        for place in range(8):
            library.pthread_create(ctypes.byref(handles, 8 * place), None, entry, place + 1)
        before = len(seen)
        await_rest()
        tell(before, sorted(seen))
    """)
    assert told == [[0, [1, 2, 3, 4, 5, 6, 7, 8]]]


def test_preferences_of_libraries_are_remembered() -> None:
    told = emulate("""
        for prefer in (torch.backends.cuda.preferred_linalg_library, torch.backends.cuda.preferred_blas_library):
            before = prefer()
            tell(prefer("cusolver" if "linalg" in prefer.__name__ else "cublaslt") != before, prefer() != before)
    """)
    assert told == [[True, True]] * 2


def test_an_encoder_looks_at_padding_when_it_does_not_train() -> None:
    """Its fast path takes nested tensors; here it goes the way of training."""
    told = emulate("""
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).cuda().eval()
        x = torch.randn(2, 4, 8, device="cuda")
        padded = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0]], device="cuda").bool()
        with torch.no_grad():
            quick = model(x, src_key_padding_mask=padded)
        slow = model(x, src_key_padding_mask=padded)
        tell(bool(torch.equal(quick[~padded], slow[~padded])))
    """)
    assert told == [[True]]


def test_ddp_finds_parameters_that_a_forward_left_out(tmp_path: Path) -> None:
    """Its reducer, in C++, copies its notes to the device by pinned memory."""
    told = emulate(f"""
        import torch.distributed as dist
        dist.init_process_group("nccl", init_method="file://{tmp_path / "store"}", rank=0, world_size=1)
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.left = nn.Linear(3, 2), nn.Linear(3, 2)
            def forward(self, x):
                return self.used(x)
        for given in ({{"find_unused_parameters": True}}, {{"static_graph": True}}):
            model = nn.parallel.DistributedDataParallel(Net().cuda(), device_ids=[0], **given)
            for _ in range(2):
                model(torch.ones(1, 3, device="cuda")).sum().backward()
            tell(model.module.used.weight.grad.tolist(), model.module.left.weight.grad is None)
        dist.destroy_process_group()
    """)
    assert told == [[[[2.0] * 3] * 2, True]] * 2


@pytest.mark.parametrize("device", ["cuda", "xpu", "mps"])
def test_the_accelerator_is_the_device(device: str) -> None:
    told = emulate(
        f"""
        import torch.accelerator as one
        x = torch.ones(250, device={device!r})
        tell(one.current_accelerator(), one.device_count(), one.current_device_index(), one.memory_allocated())
        tell(one.max_memory_allocated(), one.memory_reserved() >= 1000, one.get_memory_info()[0] > 0)
        one.empty_cache(); one.reset_peak_memory_stats(); one.synchronize(); one.set_device_index(0)
        """,
        device,
    )
    assert told == [[device, 1, 0, 1000], [1000, True, True]]
