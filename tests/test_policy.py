"""The op lists against the torch that is installed: its header, its registrations, and what its regions really do."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from amp_audit import policy

torch = pytest.importorskip("torch")
F = torch.nn.functional

MACROS = {
    "LOWER_PRECISION_FP": "lower",
    "FP32": "float32",
    "FP32_SET_OPT_DTYPE": "float32_by_dtype",
    "PROMOTE": "promote",
}
KEYS = {"cpu": "CPU", "cuda": "CUDA", "mps": "MPS", "xpu": "XPU", "mtia": "MTIA", "maia": "MAIA"}
NOT_IN_A_CPU_BUILD = {"_cudnn_rnn"}
BY_NAME = re.compile(r"names_|[dD]imname")  # overloads for named tensors, which newer versions dropped


def header() -> str:
    path = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
    if not path.is_file():
        pytest.skip("torch is installed without its headers")
    return path.read_text()


def macro(name: str) -> set[str]:
    """The ops of one ``AT_FORALL_`` macro, as ``op`` or ``op.overload``."""
    body = re.search(rf"#define AT_FORALL_{name}\(_\)\s*\\\n((?:.*\\\n)*.*\n)", header())
    assert body is not None
    return {".".join(filter(None, pair)) for pair in re.findall(r"_\((\w+)(?:, (\w+))?\)", body.group(1))}


@pytest.mark.parametrize(("name", "kind"), MACROS.items())
def test_cuda_lists_are_those_of_the_header(name: str, kind: policy.Kind) -> None:
    own = set(policy.lists("cuda", torch.__version__).overloads(kind))
    listed = macro(name)
    assert listed <= own
    beyond = {
        "lower": {"cudnn_convolution", "cudnn_convolution_transpose", "_cudnn_rnn"},
        "float32_by_dtype": {op for op in own if op.startswith("norm.")},
    }
    assert own - listed == beyond.get(kind, set())


@pytest.mark.parametrize(("device", "key"), KEYS.items())
def test_lists_are_what_the_binary_registers(device: str, key: str) -> None:
    try:
        listed = torch._C._dispatch_get_registrations_for_dispatch_key(f"Autocast{key}")
    except RuntimeError:
        pytest.skip(f"this torch has no Autocast{key}")
    registered = {op.removeprefix("aten::") for op in listed if op.startswith("aten::")}
    own = policy.lists(device, torch.__version__)
    ours = set(itertools.chain.from_iterable(own.overloads(kind) for kind in policy.KINDS))
    assert registered - ours == set()
    assert {op for op in ours - registered if not BY_NAME.search(op)} <= NOT_IN_A_CPU_BUILD
    for op in registered:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{op}", f"Autocast{key}"), op


@pytest.mark.parametrize("device", ["cpu", "cuda", "xpu", "mps", "mtia", "hpu", "xla", "ipu"])
def test_default_dtypes(device: str) -> None:
    try:
        default = torch.get_autocast_dtype(device)
    except RuntimeError:
        pytest.skip(f"this torch has no autocast on {device}")
    assert f"torch.{policy.default_dtype(device)}" == str(default)


X = {name: torch.ones(2, 3, 4, dtype=getattr(torch, name)) for name in ("float16", "bfloat16", "float32", "float64")}
OPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "matmul": lambda x: x @ x.transpose(1, 2),
    "bmm": lambda x: torch.bmm(x, x.transpose(1, 2)),
    "mm": lambda x: torch.mm(x[0], x[0].T),
    "linear": lambda x: F.linear(x, x[0]),
    "conv1d": lambda x: F.conv1d(x, x[:1, :, :1]),
    "addmm": lambda x: torch.addmm(x[0, :, :1], x[0], x[0].T),
    "mv": lambda x: torch.mv(x[0], x[0, 0]),
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "exp": torch.exp,
    "pow": lambda x: x**2,
    "sum": lambda x: x.sum(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "sigmoid": torch.sigmoid,
    "mean": lambda x: x.mean(-1),
    "prod": lambda x: x.prod(-1),
    "cat": lambda x: torch.cat([x, x]),
    "stack": lambda x: torch.stack([x, x]),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "l1_loss": lambda x: F.l1_loss(x, x),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x, x),
    "binary_cross_entropy_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, x),
    "cdist": lambda x: torch.cdist(x, x),
    "replication_pad1d": lambda x: F.pad(x, (1, 1), mode="replicate"),
    "avg_pool3d": lambda x: F.avg_pool3d(x[None], 1),
    "quantile": lambda x: x.quantile(0.5, dim=-1),
    "fft_rfft": lambda x: torch.fft.rfft(x).real,
    "trace": lambda x: x[0].trace(),
}


@pytest.mark.parametrize("region", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("given", ["float32", "low"])
def test_result_dtype_is_what_a_cpu_region_returns(op: str, given: str, region: str) -> None:
    x = X[region if given == "low" else given]
    with torch.autocast("cpu", dtype=getattr(torch, region)):
        out = OPS[op](x)
    expected = policy.result_dtype(op, [str(x.dtype).removeprefix("torch.")], region, "cpu", torch.__version__)
    assert str(out.dtype) == f"torch.{expected}"


def test_float64_passes_through_a_region() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = X["float64"] @ X["float64"].transpose(1, 2)
    assert out.dtype == torch.float64
    assert policy.result_dtype("matmul", ["float64", "float64"], "bfloat16", "cpu") == "float64"


@pytest.mark.parametrize("pair", list(itertools.product(policy.FLOATS, repeat=2)))
def test_promotion_is_torchs(pair: tuple[str, str]) -> None:
    wider = torch.promote_types(getattr(torch, pair[0]), getattr(torch, pair[1]))
    assert f"torch.{policy.promote(pair)}" == str(wider)


def test_promotion_of_what_is_no_float() -> None:
    assert policy.promote(["int64", "float16"]) == "float16"
    assert policy.promote(["int64", "bool"]) is None


@pytest.mark.parametrize("name", policy.FLOATS)
def test_limits_are_those_of_finfo(name: str) -> None:
    info = torch.finfo(getattr(torch, name))
    assert policy.MAX_FINITE[name] == info.max
    assert policy.SMALLEST_SUBNORMAL[name] == info.smallest_normal * info.eps


def test_devices_differ_where_it_matters() -> None:
    cuda, cpu, mps = (policy.lists(device) for device in ("cuda", "cpu", "mps"))
    assert [p.kind("softmax") for p in (cuda, cpu, mps)] == ["float32_by_dtype", None, "float32"]
    assert [p.kind("binary_cross_entropy") for p in (cuda, cpu, mps)] == ["banned", "float32", None]
    assert [p.kind("batch_norm") for p in (cuda, cpu, mps)] == [None, None, "float32"]
    assert cuda.kind("aten::softmax.int") == "float32_by_dtype"
    assert cuda.kind("softmax.int_out") is None
    assert policy.result_dtype("softmax", ["float16"], "float16") == "float32"
    assert policy.result_dtype("softmax", ["float16"], "float16", "cpu") == "float16"
    assert policy.result_dtype("dot", ["float16", "float32"], "float16") == "float32"
    assert policy.result_dtype("binary_cross_entropy", ["float16"], "float16") is None
    assert policy.result_dtype("sum", ["int64"], "float16") is None


def test_versions() -> None:
    """rms_norm joined the float32 list in torch 2.12."""
    assert policy.lists("cuda", "2.11.1").kind("rms_norm") is None
    assert policy.lists("cuda", "2.12.0+cu130").kind("rms_norm") == "float32"
    assert policy.lists("cuda").kind("rms_norm") == "float32"
    assert policy.lists("cuda", "1.10").since == "2.6"
    assert policy.lists("cuda", "3.0").since == policy.lists("cuda").since
    with pytest.raises(ValueError, match="not a torch version"):
        policy.lists("cuda", "nightly")


def test_devices_registered_elsewhere_are_said_to_be_unknown() -> None:
    assert not policy.lists("xla").known
    assert policy.lists("cuda:1").known
    assert policy.lists("xla").kind("mm") == "lower"
