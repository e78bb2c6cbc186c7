"""A walk over all operators of autocast's lists for one device, in regions of one dtype, with torch's own inputs.

It tells of each: its name, the dtypes of its inputs, the dtype of its output (or the error), and whether the output is
bit for bit that of the same operator on arguments cast by hand, as torch's own tests of autocast on CUDA check it.
"""

WALK = """
import types, unittest
try:
    import expecttest
except ImportError:  # only needed as a base class there
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase
from torch.testing._internal.autocast_test_lists import AutocastTestLists

REGION = getattr(torch, {region!r})
own = AutocastTestLists({device!r})
x = torch.randn(8, 8, device={device!r})
h = x.to(REGION)
image = {{n: torch.randn(1, 1, *[4] * n, device={device!r}, dtype=REGION) for n in (1, 2, 3)}}
heads = torch.randn(1, 2, 8, 16, device={device!r})
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
    ("batch_norm", (image[2], None, None, None, None, True, 0.1, 1e-5, False), {{}}),
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
    if name not in {names!r}:
        continue
    args = each(tuple(args), low)
    function = find(name)
    try:
        with torch.autocast({device!r}, dtype=REGION):
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
