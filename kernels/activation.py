"""Gated activation of the Llama family's feed-forward layers."""

import torch
from torch import Tensor

from decodex.kernels import backend
from decodex.kernels.checks import check_out, describe
from decodex.kernels.reference import activation as reference


def silu_mul(x: Tensor, out: Tensor | None = None) -> Tensor:
    """x [T,2I] fp32 -> [T,I]: silu(x[:, :I]) * x[:, I:], silu(a) = a / (1 + e^-a). ValueError on mismatch."""
    if x.dim() != 2 or x.dtype is not torch.float32 or x.shape[1] % 2:
        raise ValueError(f"x: expected float32 [T, 2I], got {describe(x)}")
    num_rows, width = x.shape[0], x.shape[1] // 2
    if out is None:
        out = x.new_empty(num_rows, width)
    else:
        check_out(out, num_rows, width)
    library = backend.library
    if library is None or not x.is_cpu:
        return out.copy_(reference.silu_mul(x))
    if x.stride(1) != 1:
        x = x.contiguous()
    library.silu_mul(x.data_ptr(), x.stride(0), out.data_ptr(), out.stride(0), num_rows, width, torch.get_num_threads())
    return out
