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
from tests.test_policy import MACROS, macro

torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("there is a CUDA device: it is used, not emulated", allow_module_level=True)

WALK = """
import types, unittest
try:
    import expecttest
except ImportError:  # only needed as a base class there
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase
from torch.testing._internal.autocast_test_lists import AutocastTestLists

REGION = getattr(torch, {region!r})
own = AutocastTestLists("cuda")
x = torch.randn(8, 8, device="cuda")
h = x.to(REGION)
image = {{n: torch.randn(1, 1, *[4] * n, device="cuda", dtype=REGION) for n in (1, 2, 3)}}
heads = torch.randn(1, 2, 8, 16, device="cuda")
size = {{n: [8] * n for n in (1, 2, 3)}}
MORE = [  # what torch's lists of inputs leave out
    ("scaled_dot_product_attention", (heads, heads, heads), {{}}),
    ("_scaled_dot_product_flash_attention", (heads, heads, heads), {{}}),
    ("_thnn_fused_lstm_cell", (x.repeat(1, 4), x.repeat(1, 4), x), {{}}),
    ("_thnn_fused_gru_cell", (x.repeat(1, 3), x.repeat(1, 3), x), {{}}),
    ("frobenius_norm", (h, [1]), {{}}), ("nuclear_norm", (h,), {{}}), ("nuclear_norm", (h, [0, 1]), {{}}),
    ("huber_loss", (h, h), {{}}), ("native_layer_norm", (h, [8], None, None, 1e-5), {{}}),
    ("smooth_l1_loss", (h, h), {{}}), ("hinge_embedding_loss", (h, h), {{}}),
    ("upsample_nearest1d", (image[1], size[1]), {{}}), ("upsample_nearest2d", (image[2], size[2]), {{}}),
    ("upsample_nearest3d", (image[3], size[3]), {{}}), ("_upsample_nearest_exact1d", (image[1], size[1]), {{}}),
    ("_upsample_nearest_exact2d", (image[2], size[2]), {{}}),
    ("_upsample_nearest_exact3d", (image[3], size[3]), {{}}),
    ("upsample_linear1d", (image[1], size[1], False), {{}}), ("upsample_bilinear2d", (image[2], size[2], False), {{}}),
    ("upsample_bicubic2d", (image[2], size[2], False), {{}}),
    ("upsample_trilinear3d", (image[3], size[3], False), {{}}),
    ("_upsample_bilinear2d_aa", (image[2], size[2], False), {{}}),
    ("_upsample_bicubic2d_aa", (image[2], size[2], False), {{}}),
    ("linalg_vector_norm", (h,), {{}}), ("linalg_matrix_norm", (h, 1), {{}}), ("linalg_matrix_norm", (h,), {{}}),
    ("pow", (2.0, h), {{}}), ("einsum", ("ij,jk->ik", (x, x)), {{}}),
]
listed = []
groups = ("torch_fp16", "torch_fp32", "torch_need_autocast_promote", "nn_fp16", "nn_fp32", "linalg_fp16")
for group in groups:
    for name, first, *rest in getattr(own, group):
        if rest and isinstance(rest[0], bool):
            continue  # cuDNN's own spellings, which torch tests on ROCm only
        if not isinstance(first, str):  # an equation that does not fit the tensors beside it
            listed.append((name, first, rest[0] if rest else {{}}))


def find(name):
    for place in (torch, torch._C._nn, torch._C._linalg):
        if hasattr(place, name):
            return getattr(place, name)
    return getattr(torch.ops.aten, name)


def each(value, change):
    if isinstance(value, (tuple, list)):
        return type(value)(each(item, change) for item in value)
    return change(value) if isinstance(value, torch.Tensor) else value


def dtypes(value):
    found = []
    each(value, lambda item: found.append(item.dtype))
    return [str(dtype).removeprefix("torch.") for dtype in found]


def low(tensor):  # torch's inputs for the float32 lists are float16
    return tensor.to(REGION) if tensor.dtype is torch.float16 else tensor


def first(value):
    return value[0] if isinstance(value, (tuple, list)) else value

for name, args, kwargs in listed + MORE:
    args = each(tuple(args), low)
    function = find(name)
    try:
        with torch.autocast("cuda", dtype=REGION):
            out = first(function(*args, **kwargs))
    except Exception as error:
        tell(name, dtypes(args), f"{{type(error).__name__}}: {{error}}"[:300], None)
        continue
    wanted = out.dtype if name not in {by_dtype!r} else torch.float32
    given = each(args, lambda t: t.to(out.dtype) if t.is_floating_point() else t)
    plain = first(function(*given, **kwargs))
    same = plain.dtype == out.dtype and bool(torch.equal(plain, out) or (plain.isnan() == out.isnan()).all())
    tell(name, dtypes(args), str(out.dtype).removeprefix("torch."), same)
"""


def lists(kind: str) -> set[str]:
    """Names without overloads of one list of the header."""
    return {op.partition(".")[0] for name, own in MACROS.items() if own == kind for op in macro(name)}


@pytest.fixture(scope="module", params=["float16", "bfloat16"])
def walked(request: pytest.FixtureRequest) -> tuple[str, list[list[Any]]]:
    code = WALK.format(region=request.param, by_dtype=sorted(lists("float32_by_dtype")))
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
