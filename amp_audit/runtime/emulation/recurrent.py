"""The cells of recurrent layers, which CUDA fuses: gates, activations and the new state in one kernel, and backward.

Formulas: aten/src/ATen/native/cuda/RNN.cu. Gates are added and squashed in float32, what is stored is rounded once.
"""

from __future__ import annotations

from typing import Any

import torch

from amp_audit.runtime.emulation.backend import special
from amp_audit.runtime.emulation.bridge import on_device, on_host


def _wide(tensor: torch.Tensor | None) -> torch.Tensor | None:
    if tensor is None:
        return None
    host = on_host(tensor)
    return host.float() if host.dtype in (torch.float16, torch.bfloat16) else host


def _sum(*parts: torch.Tensor | None) -> torch.Tensor:
    wide = [part for part in map(_wide, parts) if part is not None]
    return torch.stack([part.expand_as(wide[0]) for part in wide]).sum(0)


@special("_thnn_fused_lstm_cell")
def _lstm_cell(
    op: Any,
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The new hidden state, the new cell state, and the activated gates (in, forget, cell, out) for the backward."""
    enter, forget, cell, leave = _sum(input_gates, hidden_gates, input_bias, hidden_bias).chunk(4, -1)
    enter, forget, cell, leave = enter.sigmoid(), forget.sigmoid(), cell.tanh(), leave.sigmoid()
    state = forget * _known(_wide(cx)) + enter * cell
    hidden = leave * state.tanh()
    gates = torch.cat([enter, forget, cell, leave], -1)
    dtype = input_gates.dtype
    return on_device(hidden.to(dtype)), on_device(state.to(dtype)), on_device(gates.to(dtype))


@special("_thnn_fused_lstm_cell_backward_impl")
def _lstm_cell_backward(
    op: Any,
    grad_hy: torch.Tensor | None,
    grad_cy: torch.Tensor | None,
    cx: torch.Tensor,
    cy: torch.Tensor,
    workspace: torch.Tensor,
    has_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    enter, forget, cell, leave = _known(_wide(workspace)).chunk(4, -1)
    squashed = _known(_wide(cy)).tanh()
    of_hidden = _wide(grad_hy) if grad_hy is not None else torch.zeros_like(squashed)
    of_state = _wide(grad_cy) if grad_cy is not None else torch.zeros_like(squashed)
    of_state = _known(of_state) + _known(of_hidden) * leave * (1 - squashed * squashed)
    of_gates = torch.cat(
        [
            of_state * cell * enter * (1 - enter),
            of_state * _known(_wide(cx)) * forget * (1 - forget),
            of_state * enter * (1 - cell * cell),
            _known(of_hidden) * squashed * leave * (1 - leave),
        ],
        -1,
    )
    rounded = of_gates.to(workspace.dtype)
    bias = on_device(of_gates.sum(0).to(workspace.dtype)) if has_bias else None
    return on_device(rounded), on_device((of_state * forget).to(cx.dtype)), bias


@special("_thnn_fused_gru_cell")
def _gru_cell(
    op: Any,
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The new hidden state, and (reset, update, new, old state, hidden part of new) for the backward."""
    in_reset, in_update, in_new = _sum(input_gates, input_bias).chunk(3, -1)
    hidden_reset, hidden_update, hidden_new = _sum(hidden_gates, hidden_bias).chunk(3, -1)
    old = _known(_wide(hx))
    reset, update = (in_reset + hidden_reset).sigmoid(), (in_update + hidden_update).sigmoid()
    new = (in_new + reset * hidden_new).tanh()
    hidden = new + update * (old - new)
    workspace = torch.cat([reset, update, new, old, hidden_new], -1)
    return on_device(hidden.to(hx.dtype)), on_device(workspace.to(hx.dtype))


@special("_thnn_fused_gru_cell_backward")
def _gru_cell_backward(
    op: Any, grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor | None, ...]:
    reset, update, new, old, hidden_new = _known(_wide(workspace)).chunk(5, -1)
    gradient = _known(_wide(grad_hy))
    of_update = gradient * (old - new) * update * (1 - update)
    of_new = gradient * (1 - update) * (1 - new * new)
    of_reset = of_new * hidden_new * reset * (1 - reset)
    of_input = torch.cat([of_reset, of_update, of_new], -1)
    of_hidden = torch.cat([of_reset, of_update, of_new * reset], -1)
    dtype = workspace.dtype
    biases = [on_device(item.sum(0).to(dtype)) if has_bias else None for item in (of_input, of_hidden)]
    return (
        on_device(of_input.to(dtype)),
        on_device(of_hidden.to(dtype)),
        on_device((gradient * update).to(dtype)),
        *biases,
    )


def _known(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return tensor
