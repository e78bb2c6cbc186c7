"""CUDA's autocast policy on the emulated device: all operators of the installed torch's lists, with torch's own inputs.

What comes out is held against the tables of ``policies/``, and bit for bit against the same operator on arguments cast
by hand, as torch's own tests of autocast on CUDA do.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from amp_audit import policy
from tests.runtime.emulation.emulating import emulate
from tests.runtime.emulation.walking import WALK
from tests.test_policy import MACROS, macro

torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("there is a CUDA device: it is used, not emulated", allow_module_level=True)


def lists(kind: str) -> set[str]:
    """Names without overloads of one list of the header."""
    return {op.partition(".")[0] for name, own in MACROS.items() if own == kind for op in macro(name)}


@pytest.fixture(scope="module", params=["float16", "bfloat16"])
def walked(request: pytest.FixtureRequest) -> tuple[str, list[list[Any]]]:
    listed = set().union(*(lists(kind) for kind in MACROS.values()))
    code = WALK.format(device="cuda", region=request.param, names=listed, by_dtype=lists("float32_by_dtype"))
    return request.param, emulate(code)


def test_no_operator_is_left_out(walked: tuple[str, list[list[Any]]]) -> None:
    names = {name for name, *_ in walked[1]}
    listed = set().union(*(lists(kind) for kind in MACROS.values()))
    assert listed - names == set()


def test_each_operator_runs_in_the_dtype_of_the_tables(walked: tuple[str, list[list[Any]]]) -> None:
    region, told = walked
    wrong = {}
    for name, inputs, output, _ in told:
        expected = policy.result_dtype(name, inputs, region, "cuda", torch.__version__)
        if output != expected:
            wrong[(name, *inputs)] = (output, expected)
    assert wrong == {}, json.dumps([[list(key), value] for key, value in wrong.items()], indent=1)


def test_it_computes_what_it_computes_on_arguments_cast_by_hand(walked: tuple[str, list[list[Any]]]) -> None:
    assert [name for name, _, _, same in walked[1] if same is False] == []


def test_what_is_banned_raises() -> None:
    told = emulate("""
        p, y = torch.rand(4, device="cuda"), torch.rand(4, device="cuda")
        with torch.autocast("cuda"): tell(refused(lambda: F.binary_cross_entropy(p, y)))
        with torch.autocast("cuda"), torch.autocast("cuda", enabled=False): tell(F.binary_cross_entropy(p, y).dtype)
    """)
    assert "binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast" in told[0][0]
    assert told[1] == ["torch.float32"]


def test_a_region_for_the_cpu_does_nothing_to_cuda() -> None:
    told = emulate("""
        x, y = torch.ones(2, 2, device="cuda"), torch.ones(2, 2)
        with torch.autocast("cpu", dtype=torch.bfloat16): tell((x @ x).dtype, (y @ y).dtype)
        with torch.autocast("cuda", dtype=torch.bfloat16): tell((x @ x).dtype, (y @ y).dtype)
        with torch.autocast("cuda"), torch.autocast("cpu"): tell((x @ x).dtype, (y @ y).dtype, (x @ x).exp().dtype)
        with torch.cuda.amp.autocast(): tell((x @ x).dtype, torch.is_autocast_enabled("cuda"))
    """)
    assert told == [
        ["torch.float32", "torch.bfloat16"],
        ["torch.bfloat16", "torch.float32"],
        ["torch.float16", "torch.bfloat16", "torch.float32"],
        ["torch.float16", True],
    ]


def test_half_types_that_cuda_has_no_kernel_for_are_refused() -> None:
    told = emulate("""
        x = torch.rand(4, 4, device="cuda")
        for dtype in (torch.float16, torch.bfloat16):
            h = x.to(dtype)
            odd = h[:, :3].clone()
            for f in (torch.angle, torch.histc, lambda t: torch.igamma(t, t), torch.linalg.svd, torch.linalg.inv,
                      lambda t: t.quantile(0.5), lambda t: torch.cdist(t, t), lambda t: torch.fft.fft(odd)):
                tell(refused(lambda: f(h)))
        tell(torch.fft.fft(x.half()).dtype, refused(lambda: torch.angle(x)))
    """)
    messages = [message for (message,) in told[:-1]]
    assert "nothing was raised" not in messages
    half, bfloat = messages[: len(messages) // 2], messages[len(messages) // 2 :]
    for name, found in (("Half", half), ("BFloat16", bfloat)):
        assert all("not implemented for" in text and name in text for text in found[:3]), found
        assert name in found[3] and "Low precision dtypes not supported" in found[4], found
        assert "either float or double" in found[5]
        assert "cdist" in found[6]
    assert "powers of two" in half[7]
    assert told[-1] == ["torch.complex32", "nothing was raised"]


def test_the_scaler_refuses_bfloat16_gradients() -> None:
    told = emulate("""
        for dtype in (torch.bfloat16, torch.float32):
            model = nn.Linear(2, 2, device="cuda", dtype=dtype)
            optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
            scaler.scale(model(torch.ones(1, 2, device="cuda", dtype=dtype)).sum()).backward()
            tell(refused(lambda: scaler.unscale_(optimizer)))
    """)
    assert "\"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for 'BFloat16'" in told[0][0]
    assert told[1] == ["nothing was raised"]
