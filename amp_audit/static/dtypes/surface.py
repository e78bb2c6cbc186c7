"""What the functions, methods and layers of torch do to dtypes: the Python surface over ``policy``'s op lists.

Functions and methods share their names, so one table serves ``torch.softmax(x)``, ``F.softmax(x)`` and
``x.softmax()``. A name that stands in no table and on no op list is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Literal

from amp_audit import policy

Effect = Literal[
    "same",
    "listed",
    "promote",
    "bool",
    "int",
    "pair",
    "many",
    "factory",
    "integers",
    "like",
    "number",
    "shape",
    "complex",
]
"""What an op returns.

``same``: the dtype of its first tensor. ``listed``: what the op lists say. ``promote``: the widest of its tensors.
``pair``: (same, integers). ``many``: several of the same. ``factory``: float32 unless told. ``integers``: int unless
told. ``like``: the dtype of its first tensor unless told. ``number``: a Python number. ``shape``: sizes. ``complex``:
numbers of another kind than its tensor's.
"""

_MOVES = """
    view reshape reshape_as view_as transpose permute contiguous flatten unflatten ravel squeeze unsqueeze expand
    expand_as repeat repeat_interleave tile broadcast_to t swapaxes swapdims transpose_ movedim moveaxis narrow
    select index_select gather take take_along_dim masked_select roll flip fliplr flipud rot90 diagonal diag
    diag_embed tril triu clone detach cpu cuda xpu requires_grad_ pin_memory alias unfold fold as_strided
"""
MOVES = frozenset(_MOVES.split())
"""Ops that move numbers about and compute none."""

_EFFECTS: Mapping[Effect, str] = {
    "same": f"""
        {_MOVES}
        relu relu6 leaky_relu rrelu gelu silu mish elu selu celu hardtanh hardswish hardsigmoid hardshrink softshrink
        sigmoid tanh tanhshrink softsign logsigmoid logit glu erf erfc sin cos atan sqrt abs absolute neg negative sign
        floor ceil round trunc frac exp2 positive
        dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout
        mean var std nanmean amax amin aminmax median clamp clamp_min clamp_max clip nan_to_num
        batch_norm instance_norm local_response_norm
        max_pool1d max_pool2d avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d
        adaptive_max_pool2d lp_pool1d lp_pool2d pixel_shuffle pixel_unshuffle channel_shuffle pad threshold
        masked_fill index_fill masked_scatter scatter scatter_reduce index_add index_copy identity cummax_values
        normalize square_sum logcumsumexp deg2rad rad2deg sinc nanmedian data
    """,
    "promote": """
        add sub subtract rsub mul multiply div divide true_divide floor_divide remainder fmod maximum minimum fmax fmin
        hypot copysign xlogy logaddexp logaddexp2 lerp where cat concat concatenate stack hstack vstack dstack
        column_stack row_stack block_diag outer ger
    """,
    "bool": """
        eq ne lt gt le ge greater less greater_equal less_equal isnan isinf isfinite isposinf isneginf logical_and
        logical_or logical_not logical_xor isin isclose any all is_floating_point is_autocast_enabled allclose equal
    """,
    "int": "argmax argmin argsort nonzero bincount count_nonzero searchsorted bucketize one_hot",
    "pair": "topk sort kthvalue mode cummax cummin",
    "many": "split chunk unbind tensor_split split_with_sizes meshgrid broadcast_tensors hsplit vsplit dsplit",
    "factory": "zeros ones empty full rand randn eye linspace logspace hann_window hamming_window normal",
    "integers": "arange range randint randperm tril_indices triu_indices",
    "like": """
        zeros_like ones_like empty_like full_like rand_like randn_like new_zeros new_ones new_empty new_full
        new_tensor
    """,
    "complex": """
        fft_fft fft_fft2 fft_fftn fft_rfft fft_rfft2 fft_rfftn fft_ifft fft_ifft2 fft_ifftn fft_irfft fft_irfft2
        fft_irfftn fft_hfft fft_ihfft stft istft complex polar view_as_complex linalg_eig linalg_eigvals numpy
    """,
    "number": "item numel dim nelement element_size tolist ndimension",
    "shape": "size stride",
}

EFFECTS: Mapping[str, Effect] = {name: effect for effect, names in _EFFECTS.items() for name in names.split()}

SECOND_NAMES: Mapping[str, str] = {
    "clip": "clamp",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "true_divide": "div",
    "concat": "cat",
    "concatenate": "cat",
    "absolute": "abs",
    "negative": "neg",
    "linalg_norm": "linalg_vector_norm",
}

DECIDED_BY: Mapping[str, str] = {
    "cross_entropy": "nll_loss",
    "square": "pow",
    "float_power": "pow",
    "upsample": "upsample_nearest2d",
    "interpolate": "upsample_nearest2d",
    "softmin": "softmax",
    "normalize": "linalg_vector_norm",
    "multi_head_attention_forward": "linear",
    "grid_sample": "grid_sampler",
    "gru": "_cudnn_rnn",
    "lstm": "_cudnn_rnn",
    "rnn": "_cudnn_rnn",
}
"""Composite functions by the op inside them that decides their dtype."""

DECIDED_BY_ON_CPU: Mapping[str, str] = {
    "cross_entropy": "cross_entropy_loss",
    "einsum": "bmm",
    "gru": "mkldnn_rnn_layer",
    "lstm": "mkldnn_rnn_layer",
    "rnn": "mkldnn_rnn_layer",
}
"""Where CPU autocast lists another op of the same composite, or only the op inside it."""

REDUCTIONS = frozenset(
    ["mean", "sum", "prod", "std", "var", "norm", "max", "min", "median", "nanmean", "nansum", "dist", "trace"]
)
"""Ops that return a tensor without dimensions if they are given nothing but a tensor."""

NEVER_A_NUMBER = frozenset({"linear", "bmm", "conv1d", "conv2d", "conv3d", "flatten", "unsqueeze", "cat", "stack"})
"""Ops that return a tensor with dimensions whatever they are given."""

LOSSES = frozenset(
    {
        *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "ctc_loss"),
        *("binary_cross_entropy", "binary_cross_entropy_with_logits", "margin_ranking_loss", "poisson_nll_loss"),
        *("cosine_embedding_loss", "triplet_margin_loss", "soft_margin_loss", "hinge_embedding_loss"),
    }
)
"""Ops that return a tensor without dimensions unless ``reduction`` is ``"none"``."""

RESHAPING = frozenset(
    [
        "expand",
        "expand_as",
        "repeat",
        "view",
        "reshape",
        "unsqueeze",
        "tile",
        "broadcast_to",
        "flatten",
        "stack",
        "outer",
    ]
)
"""Ops that may give dimensions to a tensor that has none."""

BOUNDED = frozenset({"sin", "cos", "sigmoid", "tanh", "softmax", "one_hot"})
"""Ops whose results are at most 1, of which rounding takes little."""

WITH_SOURCE = frozenset(
    {"scatter", "scatter_reduce", "index_add", "index_copy", "index_reduce", "masked_scatter", "lerp"}
)
"""Ops that return the dtype of their first tensor and want the others to have it too."""

_NO_HALF_NAMES = """
    linalg_inv linalg_inv_ex linalg_cholesky linalg_cholesky_ex linalg_svd linalg_svdvals linalg_eigh linalg_eigvalsh
    linalg_eig linalg_eigvals linalg_qr linalg_det linalg_slogdet linalg_pinv linalg_matrix_rank linalg_cond linalg_lu
    linalg_lu_factor linalg_ldl_factor linalg_solve linalg_lstsq linalg_solve_triangular inverse cholesky svd qr det
    logdet slogdet pinverse geqrf cholesky_inverse cholesky_solve triangular_solve quantile nanquantile ctc_loss
    pca_lowrank svd_lowrank cdist pdist polar complex view_as_complex
"""
_NO_HALF_KERNEL = frozenset(_NO_HALF_NAMES.split())
"""Ops that have no kernel for float16 or bfloat16 (torch 2.13.0); they give what they are given, or raise."""

PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "masked_fill": ("mask", "value"),
    "fill": ("value",),
    "full": ("size", "fill_value"),
    "full_like": ("fill_value",),
    "new_full": ("size", "fill_value"),
    "clamp": ("min", "max"),
    "clamp_min": ("min",),
    "clamp_max": ("max",),
    "index_fill": ("dim", "index", "value"),
    "scatter": ("dim", "index", "value"),
    "pad": ("pad", "mode", "value"),
    "threshold": ("threshold", "value"),
    "hardtanh": ("min_val", "max_val"),
    "normalize": ("p", "dim", "eps"),
    "add": ("other",),
    "sub": ("other",),
    "mul": ("other",),
    "div": ("other",),
    "pow": ("exponent",),
    "maximum": ("other",),
    "minimum": ("other",),
    "where": ("self", "other"),
    "setitem": ("value",),
    "arange": ("start", "end"),
    "index_put": ("indices", "value"),
    "stft": ("n_fft", "hop_length", "win_length", "window"),
}
"""The parameters after the tensor, of ops that take a constant in the tensor's dtype."""

DEFAULTS: Mapping[str, Mapping[str, float]] = {"normalize": {"eps": 1e-12}}
"""Constants that an op takes when none is given."""

WITHOUT_TENSOR = frozenset({"full", "arange"})
"""Functions whose first argument is no tensor: all are parameters."""

CASTS: Mapping[str, str] = {
    "float": "float32",
    "half": "float16",
    "bfloat16": "bfloat16",
    "double": "float64",
    "long": "int",
    "int": "int",
    "short": "int",
    "char": "int",
    "byte": "int",
    "bool": "bool",
}
"""Methods that cast a tensor, or a whole module."""

_LAYERS: Mapping[str, str] = {
    "linear": "Linear LazyLinear NonDynamicallyQuantizableLinear",
    "conv1d": "Conv1d LazyConv1d",
    "conv2d": "Conv2d LazyConv2d",
    "conv3d": "Conv3d LazyConv3d",
    "conv_transpose1d": "ConvTranspose1d",
    "conv_transpose2d": "ConvTranspose2d",
    "conv_transpose3d": "ConvTranspose3d",
    "bilinear": "Bilinear",
    "embedding": "Embedding EmbeddingBag",
    "batch_norm": "BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm LazyBatchNorm1d LazyBatchNorm2d",
    "instance_norm": "InstanceNorm1d InstanceNorm2d InstanceNorm3d",
    "layer_norm": "LayerNorm",
    "group_norm": "GroupNorm",
    "rms_norm": "RMSNorm",
    "local_response_norm": "LocalResponseNorm",
    "softmax": "Softmax Softmax2d",
    "log_softmax": "LogSoftmax",
    "leaky_relu": "LeakyReLU",
    "relu": "ReLU",
    "relu6": "ReLU6",
    "gelu": "GELU",
    "silu": "SiLU",
    "mish": "Mish",
    "elu": "ELU",
    "selu": "SELU",
    "celu": "CELU",
    "glu": "GLU",
    "prelu": "PReLU",
    "softplus": "Softplus",
    "sigmoid": "Sigmoid",
    "logsigmoid": "LogSigmoid",
    "tanh": "Tanh",
    "hardtanh": "Hardtanh",
    "hardswish": "Hardswish",
    "hardsigmoid": "Hardsigmoid",
    "softsign": "Softsign",
    "threshold": "Threshold",
    "identity": "Identity",
    "flatten": "Flatten",
    "unflatten": "Unflatten",
    "unfold": "Unfold",
    "fold": "Fold",
    "dropout": "Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout",
    "pixel_shuffle": "PixelShuffle PixelUnshuffle ChannelShuffle",
    "max_pool1d": "MaxPool1d",
    "max_pool2d": "MaxPool2d",
    "max_pool3d": "MaxPool3d",
    "avg_pool1d": "AvgPool1d",
    "avg_pool2d": "AvgPool2d",
    "avg_pool3d": "AvgPool3d",
    "adaptive_avg_pool1d": "AdaptiveAvgPool1d",
    "adaptive_avg_pool2d": "AdaptiveAvgPool2d",
    "adaptive_avg_pool3d": "AdaptiveAvgPool3d",
    "adaptive_max_pool2d": "AdaptiveMaxPool2d",
    "pad": "ZeroPad1d ZeroPad2d ZeroPad3d ConstantPad1d ConstantPad2d",
    "upsample": "Upsample UpsamplingNearest2d UpsamplingBilinear2d",
    "lstm_cell": "LSTMCell",
    "gru_cell": "GRUCell",
    "lstm": "LSTM",
    "gru": "GRU",
    "rnn": "RNN",
    "multi_head_attention_forward": "MultiheadAttention",
    "cosine_similarity": "CosineSimilarity",
    "binary_cross_entropy": "BCELoss",
    "binary_cross_entropy_with_logits": "BCEWithLogitsLoss",
    "cross_entropy": "CrossEntropyLoss",
    "nll_loss": "NLLLoss",
    "ctc_loss": "CTCLoss",
    "mse_loss": "MSELoss",
    "l1_loss": "L1Loss",
    "smooth_l1_loss": "SmoothL1Loss",
    "huber_loss": "HuberLoss",
    "kl_div": "KLDivLoss",
    "margin_ranking_loss": "MarginRankingLoss",
    "hinge_embedding_loss": "HingeEmbeddingLoss",
    "triplet_margin_loss": "TripletMarginLoss",
    "cosine_embedding_loss": "CosineEmbeddingLoss",
    "poisson_nll_loss": "PoissonNLLLoss",
    "soft_margin_loss": "SoftMarginLoss",
}

LAYERS: Mapping[str, str] = {name: op for op, names in _LAYERS.items() for name in names.split()}
"""Classes of ``torch.nn`` by the function they apply."""

WEIGHTED = frozenset(
    {
        *("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("bilinear", "embedding", "prelu", "lstm_cell", "gru_cell", "lstm", "gru", "rnn"),
        *("multi_head_attention_forward", "rms_norm"),
    }
)
"""Layers whose parameters take part in the dtype of the result."""

PAIRS = frozenset({"lstm_cell", "lstm", "gru", "rnn", "multi_head_attention_forward"})
"""Layers that return a tuple."""

TRANSFORMERS = frozenset(
    f"torch.nn.{name}"
    for name in (
        "Transformer",
        *(f"Transformer{half}{part}" for half in ("Encoder", "Decoder") for part in ("", "Layer")),
    )
)
"""Modules of torch that begin with an attention and add its result to what they are given."""

_PREFIXES = ("torch.nn.functional.", "torch.linalg.", "torch.fft.", "torch.special.", "torch.Tensor.", "torch.")


def op_of(dotted: str) -> str | None:
    """The op that a function of torch is, by its canonical name; None for what is no op."""
    for prefix in _PREFIXES:
        if dotted.startswith(prefix):
            name = dotted.removeprefix(prefix)
            if "." in name:
                return None
            if prefix in ("torch.linalg.", "torch.fft."):
                name = f"{prefix.split('.')[1]}_{name}"
            return name
    return None


@cache
def canonical(op: str) -> str:
    """An op by the one name that the tables know, without the underscore of its in-place form."""
    known = op in EFFECTS or op in SECOND_NAMES or not in_place(op)
    name = op if known else op.removesuffix("_")
    return SECOND_NAMES.get(name, name)


def in_place(op: str) -> bool:
    """Whether ``op`` writes into its tensor, and so keeps the dtype whatever region it is in."""
    return op.endswith("_") and not op.startswith("_") and op != "requires_grad_"


@cache
def kind_of(op: str, device: str) -> policy.Kind | None:
    """What a region on ``device`` does to an op of the Python surface."""
    name = canonical(op)
    decider = DECIDED_BY.get(name, name)
    if device == "cpu":
        decider = DECIDED_BY_ON_CPU.get(name, decider)
    return policy.lists(device).kind(decider)


@cache
def effect_of(op: str, device: str = "cuda") -> Effect | None:
    """What an op returns; None if nobody knows."""
    name = canonical(op)
    found = EFFECTS.get(name)
    if found == "complex":
        return found
    if kind_of(name, device) is not None:
        return "listed"
    if found is None and (kind_of(name, "cuda") or kind_of(name, "cpu") or name in _NO_HALF_KERNEL):
        return "listed"
    return found
