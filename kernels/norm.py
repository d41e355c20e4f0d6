"""Root-mean-square norm of rows."""

import torch
from torch import Tensor

from decodex.kernels import backend
from decodex.kernels.checks import check_out, describe
from decodex.kernels.reference import norm as reference


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """x [T,H] fp32, weight [H] fp32 -> x / sqrt(mean(x^2) + eps) * weight; `out` may be x. ValueError on mismatch."""
    shape = x.shape
    if len(shape) != 2 or x.dtype is not torch.float32:
        raise ValueError(f"x: expected float32 [T, H], got {describe(x)}")
    num_rows, width = shape
    if weight.shape != (width,) or weight.dtype is not torch.float32:
        raise ValueError(f"weight: expected float32 [{width}], got {describe(weight)}")
    if out is None:
        out = x.new_empty(num_rows, width)
        out_stride = width
    else:
        out_stride = check_out(out, x, num_rows, width)
    library = backend.library
    if library is None or not x.is_cpu:
        return out.copy_(reference.rms_norm(x, weight, eps))
    row_stride, column_stride = x.stride()
    if column_stride != 1:
        x = x.contiguous()
        row_stride = width
    if not weight.is_contiguous():
        weight = weight.contiguous()
    library.rms_norm(
        x.data_ptr(),
        row_stride,
        weight.data_ptr(),
        out.data_ptr(),
        out_stride,
        num_rows,
        width,
        eps,
        torch.get_num_threads(),
    )
    return out
