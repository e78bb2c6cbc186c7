"""Values on the emulated device: kernels that CUDA has and the CPU has not, and how results are rounded."""

from __future__ import annotations

import textwrap

import pytest

from tests.runtime.emulation.emulating import emulate

torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("there is a CUDA device: it is used, not emulated", allow_module_level=True)

ATTENTION = """
def reference(q, k, v, mask, causal, scale=None):  # in float64, on the CPU
    q, k, v = (t.detach().cpu().double().requires_grad_() for t in (q, k, v))
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None: scores = scores + mask.cpu().double()
    if causal: scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -float("inf"))
    return scores.softmax(-1) @ v, (q, k, v)

def compare(dtype, width, *, mask=None, causal=False, length=12, scale=None):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, length, width, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)
    weight = torch.randn(out.shape)
    (out.float() * weight.cuda()).sum().backward()
    expected, own = reference(q, k, v, mask, causal, scale)
    (expected * weight).sum().backward()
    pairs = [(out, expected), *((a.grad, b.grad) for a, b in zip((q, k, v), own))]
    errors = [(a.cpu() - b).abs().max() for a, b in pairs]
    node = out.grad_fn if "Slice" not in out.grad_fn.name() else out.grad_fn.next_functions[0][0]  # padded heads
    tell(node.name(), out.dtype, max(float(e) for e in errors))
"""


def test_attention() -> None:
    told = emulate(
        ATTENTION
        + textwrap.dedent("""
        half, bfloat = torch.float16, torch.bfloat16
        compare(half, 16); compare(half, 16, causal=True); compare(bfloat, 20, causal=True); compare(half, 8, scale=0.3)
        compare(half, 16, mask=torch.randn(12, 12, device="cuda", dtype=half))
        compare(torch.float32, 16); compare(torch.float32, 16, causal=True)
        compare(half, 12, mask=torch.randn(12, 12, device="cuda", dtype=half))
        torch.backends.cuda.enable_flash_sdp(False); compare(half, 16)
        torch.backends.cuda.enable_mem_efficient_sdp(False); compare(half, 16)
    """)
    )
    kinds = ["Flash"] * 4 + ["Efficient"] * 3 + [None, "Efficient", None]
    for (name, dtype, error), kind in zip(told, kinds, strict=True):
        assert (kind in name) if kind else ("Attention" not in name), name
        assert error < {"torch.float32": 1e-5, "torch.float16": 6e-3, "torch.bfloat16": 5e-2}[dtype]
    assert [dtype for _, dtype, _ in told].count("torch.bfloat16") == 1


def test_chips_without_flash_attention_take_the_other_kernel() -> None:
    code = ATTENTION + "compare(torch.float16, 16); compare(torch.bfloat16, 16)"
    assert [name.split("Product")[1][:5] for name, _, _ in emulate(code, "cuda:sm80")] == ["Flash", "Flash"]
    old = emulate(code, "cuda:sm75")
    assert "Efficient" in old[0][0] and "Attention" not in old[1][0]


def test_attention_drops_the_same_in_both_directions() -> None:
    told = emulate("""
        for dtype in (torch.float16, torch.float32):
            torch.manual_seed(1)
            q = torch.zeros(1, 1, 64, 8, device="cuda", dtype=dtype)
            v = torch.eye(64, device="cuda", dtype=dtype)[None, None].requires_grad_()
            width = F.pad(q, (0, 56))  # all scores are equal: each row of the result is its mask / (64 * (1 - p))
            out = F.scaled_dot_product_attention(width, width, v, dropout_p=0.25)
            weights = out[0, 0].float()
            out.backward(torch.eye(64, device="cuda", dtype=dtype)[None, None])
            kept = (weights > 0).float().mean().item()
            same = torch.equal(v.grad[0, 0].t().float() > 0, weights > 0)
            tell(round(float(weights.max()) * 64 * 0.75, 2), 0.7 < kept < 0.8, same)
    """)
    assert told == [[1.0, True, True], [1.0, True, True]]


def test_recurrent_layers() -> None:
    """Against the CPU's own layers, in float32: the same weights, inputs and gradients."""
    told = emulate("""
        for make in (nn.LSTM, nn.GRU, nn.RNN):
            torch.manual_seed(2)
            host = make(5, 7, num_layers=2, batch_first=True, bidirectional=True)
            device = make(5, 7, num_layers=2, batch_first=True, bidirectional=True)
            device.load_state_dict(host.state_dict()); device.cuda()
            x = torch.randn(3, 4, 5)
            one, other = host(x)[0], device(x.cuda())[0]
            one.square().sum().backward(); other.square().sum().backward()
            grads = [(a.grad - b.grad.cpu()).abs().max().item() for a, b in zip(host.parameters(), device.parameters())]
            tell(make.__name__, (one - other.cpu()).abs().max().item() < 1e-6, max(grads) < 1e-5)
            with torch.autocast("cuda", dtype=torch.bfloat16): tell(device(x.cuda())[0].dtype)
    """)
    assert told == [item for name in ("LSTM", "GRU", "RNN") for item in ([name, True, True], ["torch.bfloat16"])]


def test_matmul_and_convolution_sum_in_float32_and_round_once() -> None:
    """4096 products of 1 with 2**-12, and 1: a half accumulator loses all that is added to 1, float32 none."""
    told = emulate("""
        for dtype in (torch.float16, torch.bfloat16):
            a = torch.ones(1, 4097, dtype=dtype, device="cuda")
            b = torch.full((4097, 1), 2.0**-12, dtype=dtype, device="cuda"); b[0] = 1
            many = a.expand(3, 1, -1).bmm(b.expand(3, -1, -1))
            tell((a @ b).item(), F.linear(a, b.t()).item(), many[2, 0, 0].item())
            tell(F.conv1d(a[None], b.t()[None]).item(), torch.mv(a, b[:, 0]).item(), torch.dot(a[0], b[:, 0]).item())
            tell(a.addmm(torch.ones(1, 4097, device="cuda", dtype=dtype), b.expand(-1, 4097))[0, 5].item())
            x = torch.full((1, 1), 65504.0 if dtype is torch.float16 else 3e38, dtype=dtype, device="cuda")
            tell((x @ (x * 0 + 2)).isinf().item(), (x @ (x * 0 + 1)).isinf().item())
    """)
    for first, second, third, fourth in (told[:4], told[4:]):
        assert first == [2.0] * 3 and second == [2.0] * 3 and third == [3.0] and fourth == [True, False]


def test_dropout_and_norms_are_cudas() -> None:
    told = emulate("""
        x = torch.ones(4000, device="cuda", dtype=torch.float16, requires_grad=True)
        y = F.dropout(x, 0.25); y.sum().backward()
        kept = (y > 0).float().mean().item()
        tell(y.grad_fn.name(), round(y.max().item(), 3), 0.7 < kept < 0.8, torch.equal(x.grad, y))
        h = torch.randn(4, 8, device="cuda", dtype=torch.bfloat16)
        tell(*[t.dtype for t in torch.native_layer_norm(h, [8], None, None, 1e-5)])
        m = nn.BatchNorm2d(3).cuda()
        with torch.autocast("cuda"): tell(m(torch.randn(2, 3, 4, 4, device="cuda").half()).dtype, m.running_mean.dtype)
        tell(F.softmax(h, 0, dtype=torch.float32).dtype)
    """)
    assert told[0] == ["NativeDropoutBackward0", 1.333, True, True]
    assert told[1:] == [
        ["torch.bfloat16", "torch.float32", "torch.float32"],
        ["torch.float16", "torch.float32"],
        ["torch.float32"],
    ]


def test_optimizers_of_all_kinds() -> None:
    """The same updates as on the CPU, bit for bit, in float32."""
    told = emulate("""
        for options in ({}, {"foreach": True}, {"fused": True}, {"foreach": False}):
            for cls in (torch.optim.AdamW, torch.optim.SGD):
                models = []
                for place in ("cpu", "cuda"):
                    torch.manual_seed(0)
                    model = nn.Linear(6, 3).to(place)
                    optimizer = cls(model.parameters(), lr=0.1, **options)
                    x = torch.linspace(0, 1, 12).view(2, 6).to(place)
                    for _ in range(3):
                        optimizer.zero_grad(); model(x).square().sum().backward(); optimizer.step()
                    models.append(model)
                one, other = models
                tell(max((a - b.cpu()).abs().max().item() for a, b in zip(one.parameters(), other.parameters())))
    """)
    assert len(told) == 8 and max(error for (error,) in told) < 1e-6


def test_attention_without_a_kernel_is_refused() -> None:
    """A program that allows FlashAttention alone meets CUDA's refusal where that does not fit."""
    told = emulate("""
        from torch.nn.attention import SDPBackend, sdpa_kernel
        x = torch.ones(1, 1, 4, 8, device="cuda")
        half = x.half().requires_grad_()
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            with sdpa_kernel(backend):
                tell(F.scaled_dot_product_attention(half, half, half).grad_fn.name())
                tell(refused(lambda: F.scaled_dot_product_attention(x, x, x)))
        params = [torch.backends.cuda.SDPAParams(t, t, t, None, 0.0, False, False) for t in (half, x)]
        tell(*[torch.backends.cuda.can_use_flash_attention(p) for p in params],
             *[torch.backends.cuda.can_use_efficient_attention(p) for p in params])
    """)
    refusal = ["RuntimeError: No available kernel. Aborting execution."]
    assert told == [["ScaledDotProductFlashAttentionBackward0"], refusal] * 2 + [[True, False, True, True]]


def test_synchronized_batch_norm_is_batch_norm_of_all_ranks() -> None:
    told = emulate("""
        def largest(pairs):
            return max(float((a.cpu().double() - b.double()).abs().max().detach()) for a, b in pairs)
        for dtype in (torch.float32, torch.float16):
            torch.manual_seed(0)
            whole = nn.BatchNorm2d(4).double()
            nn.init.uniform_(whole.weight); nn.init.normal_(whole.bias)
            x, g = torch.randn(6, 4, 5, 5).to(dtype), torch.randn(6, 4, 5, 5).to(dtype)
            wide = x.double().requires_grad_()
            expected = whole(wide); expected.backward(g.double())
            w, b = (p.detach().float().cuda() for p in (whole.weight, whole.bias))
            xs, gs = (t.cuda().split([2, 4]) for t in (x, g))
            counts = torch.tensor([50.0, 100.0], device="cuda")
            mean, invstd = (torch.stack(s) for s in zip(*[torch.batch_norm_stats(t, 1e-5) for t in xs]))
            running = torch.zeros(4, device="cuda"), torch.ones(4, device="cuda")
            mean, invstd = torch.batch_norm_gather_stats_with_counts(
                xs[0], mean, invstd, *running, 0.1, 1e-5, counts)
            out = torch.cat([torch.batch_norm_elemt(t, w, b, mean, invstd, 1e-5) for t in xs])
            parts = [torch.batch_norm_backward_reduce(a, t, mean, invstd, w, True, True, True) for a, t in zip(gs, xs)]
            sums, centred, of_weight, of_bias = (one + other for one, other in zip(*parts))
            back = torch.cat([torch.batch_norm_backward_elemt(a, t, mean, invstd, w, sums, centred, counts)
                              for a, t in zip(gs, xs)])
            exact = largest([*zip(running, (whole.running_mean, whole.running_var)),
                             (of_weight, whole.weight.grad), (of_bias, whole.bias.grad)])
            tell(out.dtype, mean.dtype, exact < 1e-5, largest([(out, expected), (back, wide.grad)]))
    """)
    for (_, mean, exact, error), most in zip(told, (1e-5, 3e-3), strict=True):
        assert (mean, exact) == ("torch.float32", True)
        assert error < most
    assert [out for out, *_ in told] == ["torch.float32", "torch.float16"]


TF32 = """
import math
def kept(tensor):  # ten bits of mantissa, halves away from zero, in float64
    mantissa, exponent = torch.frexp(tensor.detach().cpu().double())
    return torch.ldexp((mantissa.abs() * 2**11 + 0.5).floor() / 2**11 * mantissa.sign(), exponent)
def error(out, expected):
    return float((out.detach().cpu().double() - expected).norm() / expected.norm())
torch.manual_seed(0)
a, b = torch.randn(40, 50, device="cuda", requires_grad=True), torch.randn(50, 30, device="cuda")
x, w = torch.randn(2, 4, 9, 9, device="cuda"), torch.randn(6, 4, 3, 3, device="cuda", requires_grad=True)
g = torch.randn(2, 6, 7, 7, device="cuda")
def product(cast):
    return error(a @ b, cast(a) @ cast(b)) < 1e-6
def convolution(cast):
    w.grad = None
    out = F.conv2d(x, w); out.backward(g)
    own = cast(w).requires_grad_(); F.conv2d(cast(x), own).backward(cast(g))
    return error(out, F.conv2d(cast(x), cast(w))) < 1e-6 and error(w.grad, own.grad) < 1e-6
def exact(tensor):
    return tensor.detach().cpu().double()
def kinds(function):
    return "tf32" if function(kept) else "float32" if function(exact) else "neither"
"""


def test_tf32_is_what_the_program_allows() -> None:
    """Convolutions by default, products of matrices when they may, in both directions; nothing else."""
    told = emulate(
        TF32
        + textwrap.dedent("""
        tell(kinds(product), kinds(convolution))
        torch.backends.cuda.matmul.allow_tf32 = True; torch.backends.cudnn.allow_tf32 = False
        tell(kinds(product), kinds(convolution))
        torch.set_float32_matmul_precision("highest"); tell(kinds(product))
        torch.set_float32_matmul_precision("high"); tell(kinds(product))
        (a @ b).sum().backward(); tell(error(a.grad, (torch.ones(40, 30, dtype=torch.float64) @ kept(b).t())) < 1e-6)
        bias = torch.full((30,), 1 + 2.0**-20, device="cuda")  # what is added keeps its bits
        tell(float((torch.addmm(bias, a, b * 0)[0, 0] - 1).detach() * 2**20))
        for value in (math.inf, -math.inf, math.nan):
            tell(str((torch.full((1, 1), value, device="cuda") @ torch.ones(1, 1, device="cuda")).item()))
        """)
    )
    assert told[:5] == [["float32", "tf32"], ["tf32", "float32"], ["float32"], ["tf32"], [True]]
    assert told[5][0] == 1.0
    assert [text for (text,) in told[6:]] == ["inf", "-inf", "nan"]


def test_chips_before_ampere_have_no_tf32() -> None:
    code = TF32 + "torch.backends.cuda.matmul.allow_tf32 = True; tell(kinds(product), kinds(convolution))"
    assert emulate(code, "cuda:sm75") == [["float32", "float32"]]
    assert emulate(code, "cuda:sm90") == [["tf32", "tf32"]]
