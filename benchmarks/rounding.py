"""How the emulated CUDA rounds: single operators on half inputs, against float32 arithmetic rounded once.

    python benchmarks/rounding.py

Prints, by dtype and operator, the share of elements that are not the correctly rounded float32 result and the largest
error in units in the last place (0.5 is what rounding costs). float32 itself is summed in the CPU's order.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from amp_audit.runtime import emulation

WIDTH, ROWS = 1024, 128
aten: Any = torch.ops.aten
Op = Callable[..., torch.Tensor]


def operators() -> dict[str, Op]:
    """Operators of x, y (ROWS, WIDTH), p (x made positive) and g (a gradient), each a single kernel."""
    classes = torch.arange(ROWS, device="cuda")
    return {
        "add": lambda x, y, p, g: x + y,
        "mul": lambda x, y, p, g: x * y,
        "div": lambda x, y, p, g: x / p,
        "addcmul": lambda x, y, p, g: torch.addcmul(x, y, g),
        "lerp": lambda x, y, p, g: torch.lerp(x, y, 0.3),
        "exp": lambda x, y, p, g: x.exp(),
        "log": lambda x, y, p, g: p.log(),
        "rsqrt": lambda x, y, p, g: p.rsqrt(),
        "pow": lambda x, y, p, g: p.pow(1.7),
        "pow (3)": lambda x, y, p, g: x.pow(3),
        "tanh": lambda x, y, p, g: x.tanh(),
        "sigmoid": lambda x, y, p, g: x.sigmoid(),
        "gelu": lambda x, y, p, g: aten.gelu(x),
        "gelu_backward": lambda x, y, p, g: aten.gelu_backward(g, x),
        "silu": lambda x, y, p, g: aten.silu(x),
        "silu_backward": lambda x, y, p, g: aten.silu_backward(g, x),
        "tanh_backward": lambda x, y, p, g: aten.tanh_backward(g, y.clamp(-1, 1)),
        "sum": lambda x, y, p, g: x.sum(-1),
        "mean": lambda x, y, p, g: x.mean(-1),
        "var": lambda x, y, p, g: x.var(-1),
        "norm": lambda x, y, p, g: aten.linalg_vector_norm(x, 2, [-1]),
        "prod": lambda x, y, p, g: p[:, :8].prod(-1),
        "cumsum": lambda x, y, p, g: x.cumsum(-1),
        "logsumexp": lambda x, y, p, g: aten.logsumexp(x, [-1]),
        "_softmax": lambda x, y, p, g: aten._softmax(x, -1, False),
        "_log_softmax": lambda x, y, p, g: aten._log_softmax(x, -1, False),
        "nll_loss_forward": lambda x, y, p, g: aten.nll_loss_forward(x, classes, None, 1, -100)[0],
        "native_layer_norm": lambda x, y, p, g: aten.native_layer_norm(x, [WIDTH], None, None, 1e-5)[0],
        "native_group_norm": lambda x, y, p, g: aten.native_group_norm(x, None, None, 8, 16, WIDTH, 4, 1e-5)[0],
        "native_batch_norm": lambda x, y, p, g: aten.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)[0],
        "mm": lambda x, y, p, g: x @ y.t(),
        "convolution": lambda x, y, p, g: torch.conv2d(x.view(8, 16, 32, 32), y.view(8, 16, 32, 32)[..., :3, :3]),
        "avg_pool2d": lambda x, y, p, g: aten.avg_pool2d(x.view(8, 16, 32, 32), [3, 3]),
        "upsample_bilinear2d": lambda x, y, p, g: aten.upsample_bilinear2d(x.view(8, 16, 32, 32), [64, 64], False),
        "mse_loss": lambda x, y, p, g: aten.mse_loss(x, y),
        "index_add": lambda x, y, p, g: x[:4].index_add(0, classes % 4, y),
        "scatter_add": lambda x, y, p, g: x[:4].scatter_add(0, (classes % 4)[:, None].expand(-1, WIDTH), y),
        "embedding_dense_backward": lambda x, y, p, g: aten.embedding_dense_backward(g, classes % 4, 4, -1, False),
        "flash attention": lambda x, y, p, g: aten._scaled_dot_product_flash_attention(*[x.view(2, 4, -1, 32)] * 3)[0],
    }


def measure(op: Op, dtype: torch.dtype) -> tuple[float, float]:
    """The share of results that are not the rounded float32 ones, and the largest error in units in the last place."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    x, y, g = (torch.randn(ROWS, WIDTH, device="cuda", generator=generator).to(dtype) for _ in range(3))
    inputs = (x, y, (x.abs() + 0.125).to(dtype), g)
    got = op(*inputs).cpu()
    exact = op(*(item.float() for item in inputs)).cpu()
    wanted = exact.to(got.dtype)
    unit = (torch.nextafter(wanted.abs(), torch.full_like(wanted, torch.inf)) - wanted.abs()).float()
    return (got != wanted).float().mean().item(), ((got.float() - exact).abs() / unit).nan_to_num().max().item()


def main() -> None:
    emulation.begin("cuda")
    torch.set_num_threads(1)
    print(f"{'':28}{'float16':>22}{'bfloat16':>22}")
    for name, op in operators().items():
        pairs = [measure(op, dtype) for dtype in (torch.float16, torch.bfloat16)]
        print(f"{name:28}" + "".join(f"{share:12.4%}{error:6.2f} ulp" for share, error in pairs))


if __name__ == "__main__":
    main()
