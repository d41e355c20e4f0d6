"""Gated activation of the Llama family's feed-forward layers."""

import torch
from torch import Tensor

from decodex.kernels import backend
from decodex.kernels.checks import check_out, describe
from decodex.kernels.reference import activation as reference


def silu_mul(x: Tensor, out: Tensor | None = None) -> Tensor:
    """x [T,2I] fp32 -> [T,I]: silu(x[:, :I]) * x[:, I:], silu(a) = a / (1 + e^-a). ValueError on mismatch."""
    shape = x.shape
    if len(shape) != 2 or x.dtype is not torch.float32 or shape[1] % 2:
        raise ValueError(f"x: expected float32 [T, 2I], got {describe(x)}")
    num_rows, width = shape[0], shape[1] // 2
    if out is None:
        out = x.new_empty(num_rows, width)
        out_stride = width
    else:
        out_stride = check_out(out, x, num_rows, width)
    library = backend.library
    if library is None or not x.is_cpu:
        return out.copy_(reference.silu_mul(x))
    row_stride, column_stride = x.stride()
    if column_stride != 1:
        x = x.contiguous()
        row_stride = 2 * width
    threads = torch.get_num_threads()
    library.silu_mul(x.data_ptr(), row_stride, out.data_ptr(), out_stride, num_rows, width, threads)
    return out
