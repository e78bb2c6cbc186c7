"""XPU and MPS without such a device: their autocast lists, training with the names that programs use, refusals."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from amp_audit import policy
from tests.runtime.emulation.emulating import emulate
from tests.runtime.emulation.test_program import amp_audit
from tests.runtime.emulation.walking import WALK

torch = pytest.importorskip("torch")
if torch.cuda.is_available() or torch.backends.mps.is_available():
    pytest.skip("there is a device: it is used, not emulated", allow_module_level=True)

DEVICES = ("xpu", "mps")
CUDNN = {"cudnn_convolution", "cudnn_convolution_transpose"}
"""Like ``_mps_convolution`` chosen inside a convolution, which is listed itself."""


def names(device: str, *kinds: policy.Kind) -> set[str]:
    """Listed operators of some kinds (of all), without overloads."""
    lists = policy.lists(device, torch.__version__)
    return {name.partition(".")[0] for kind in kinds or policy.KINDS for name in lists.overloads(kind)}


@pytest.fixture(scope="module", params=[(device, dtype) for device in DEVICES for dtype in ("float16", "bfloat16")])
def walked(request: pytest.FixtureRequest) -> tuple[str, str, list[list[Any]]]:
    device, region = request.param
    by_dtype = names(device, "float32_by_dtype")
    code = WALK.format(device=device, region=region, names=names(device), by_dtype=by_dtype)
    return device, region, emulate(code, device)


def test_each_operator_of_the_lists_runs_in_the_dtype_of_the_tables(walked: tuple[str, str, list[list[Any]]]) -> None:
    device, region, told = walked
    wrong = {}
    for name, inputs, output, _ in told:
        expected = policy.result_dtype(name, inputs, region, device, torch.__version__)
        if output != expected:
            wrong[(name, *inputs)] = (output, expected)
    assert wrong == {}, json.dumps([[list(key), value] for key, value in wrong.items()], indent=1)
    assert names(device) - {name for name, *_ in told} <= {*names(device, "banned"), "_mps_convolution", *CUDNN}


def test_it_computes_what_it_computes_on_arguments_cast_by_hand(walked: tuple[str, str, list[list[Any]]]) -> None:
    assert [name for name, _, _, same in walked[2] if same is False] == []


@pytest.mark.parametrize("device", DEVICES)
def test_a_model_learns_what_it_learns_on_the_cpu(device: str) -> None:
    told = emulate(
        f"""
        def train(place):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
            x, y = torch.randn(8, 1, 8, 8), torch.arange(8) % 3
            model, x, y = model.to(place), x.to(place), y.to(place)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            scaler = torch.amp.GradScaler(place, enabled=place != "cpu")
            for _ in range(5):
                with torch.autocast(place, dtype=torch.bfloat16):
                    loss = F.cross_entropy(model(x), y)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            tell(loss.device.type, loss.dtype, scaler.get_scale())
            return loss.item()
        there, here = train({device!r}), train("cpu")
        tell(abs(there - here) < 0.02 * here, here < 0.9)
        """,
        device,
    )
    assert told == [[device, "torch.float32", 65536.0], ["cpu", "torch.float32", 1.0], [True, True]]


@pytest.mark.parametrize("device", DEVICES)
def test_layers_and_checkpoints(device: str) -> None:
    told = emulate(
        f"""
        import io
        D = {device!r}
        lstm = nn.LSTM(4, 4, batch_first=True).to(D)
        out, _ = lstm(torch.randn(2, 3, 4, device=D))
        out.sum().backward()
        q = torch.randn(1, 2, 4, 8, device=D, requires_grad=True)
        with torch.autocast(D, dtype=torch.float16):
            seen = F.scaled_dot_product_attention(q, q, q, is_causal=True)
        seen.sum().backward()
        tell(out.device.type, lstm.weight_hh_l0.grad.device.type, seen.dtype, q.grad.dtype)
        file = io.BytesIO(); torch.save(lstm.state_dict(), file)
        for where in (None, "cpu", D):
            file.seek(0)
            tell(sorted({{v.device.type for v in torch.load(file, map_location=where).values()}}))
        state = torch.get_device_module(D).get_rng_state(); first = torch.rand(3, device=D)
        torch.get_device_module(D).set_rng_state(state); tell(bool((torch.rand(3, device=D) == first).all()))
        tell(torch.rand(3, device=D, generator=torch.Generator(D).manual_seed(3)).device.type)
        tell(torch.accelerator.current_accelerator(), torch.accelerator.is_available())
        torch.accelerator.synchronize()
        tell(torch.empty(0, device=D).device.type, refused(lambda: first + torch.ones(3)))
        """,
        device,
    )
    assert told[0] == [device, device, "torch.float16", "torch.float32"]
    assert told[1:4] == [[[device]], [["cpu"]], [[device]]]
    assert told[4:7] == [[True], [device], [device, True]]
    assert told[7][0] == device
    assert "at least two devices" in told[7][1]


def test_the_names_of_mps() -> None:
    told = emulate(
        """
        tell(torch.backends.mps.is_available(), torch.backends.mps.is_built(), torch.mps.device_count())
        torch.mps.manual_seed(3); torch.mps.synchronize(); torch.mps.empty_cache()
        x = torch.ones(10, device="mps")
        tell(torch.mps.current_allocated_memory(), x.is_mps, x.type())
        tell(refused(lambda: x.double()))
        tell(refused(lambda: torch.mps.compile_shader("kernel void f() {}")))
        one, other = torch.mps.Event(enable_timing=True), torch.mps.Event(enable_timing=True)
        one.record(); other.record(); other.synchronize()
        tell(one.elapsed_time(other) >= 0, torch.cuda.is_available(), torch.xpu.is_available())
        """,
        "mps",
    )
    assert told[:2] == [[True, True, 1], [40, True, "torch.mps.FloatTensor"]]
    assert told[2][0].startswith("TypeError: Cannot convert a MPS Tensor to float64 dtype")
    assert told[3] == ["CannotEmulate: amp-audit cannot emulate Metal kernels (torch.mps.compile_shader)"]
    assert told[4] == [True, False, False]


def test_the_names_of_xpu() -> None:
    told = emulate(
        """
        tell(torch.xpu.is_available(), torch.xpu.device_count(), torch.xpu.current_device())
        torch.xpu.set_device(0); torch.xpu.synchronize(); torch.xpu.empty_cache(); torch.xpu.manual_seed_all(3)
        tell(torch.xpu.get_device_name(), torch.xpu.is_bf16_supported(), torch.xpu.get_device_capability()["has_fp64"])
        x = torch.ones(10).xpu(non_blocking=True)
        tell(torch.xpu.memory_allocated(), torch.xpu.max_memory_allocated(), x.is_xpu, x.double().dtype)
        stream = torch.xpu.Stream()
        with torch.xpu.stream(stream): tell(torch.xpu.current_stream() == stream)
        event = stream.record_event(); torch.xpu.current_stream().wait_event(event)
        tell(nn.Linear(2, 2).xpu().weight.device, refused(lambda: torch.xpu.set_device(1)))
        tell(torch.cuda.is_available())
        """,
        "xpu",
    )
    assert told[:4] == [
        [True, 1, 0],
        ["Intel(R) Data Center GPU Max 1550", True, True],
        [40, 40, True, "torch.float64"],
        [True],
    ]
    assert told[4][0] == "xpu:0"
    assert "device index is out of range" in told[4][1]
    assert told[5] == [False]


def test_a_report_of_a_run_on_mps(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import torch
        from torch import nn
        device = "mps" if torch.backends.mps.is_available() else "cpu"
        model = nn.Linear(8, 8).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            with torch.autocast(device, dtype=torch.float16):
                loss = model(torch.ones(4, 8, device=device)).softmax(-1).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        """)
    )
    done = amp_audit(tmp_path, "--emulate", "mps", "--format", "json", "-o", "out.json", "train.py")
    data = json.loads((tmp_path / "out.json").read_text())
    trace = data["trace"]
    assert (trace["policy"], trace["device"], trace["emulated"]) == ("mps", "Apple M3 Max", "mps"), done.stderr
    assert "could not be observed" not in (tmp_path / "out.json").read_text()  # MPS has no float64
    assert "AMP201" in {finding["rule"] for finding in data["findings"]}
