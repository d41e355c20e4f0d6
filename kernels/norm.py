"""Root-mean-square norm of rows."""

import torch
from torch import Tensor

from decodex.kernels import backend
from decodex.kernels.checks import check_out, describe
from decodex.kernels.reference import norm as reference


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """x [T,H] fp32, weight [H] fp32 -> x / sqrt(mean(x^2) + eps) * weight; `out` may be x. ValueError on mismatch."""
    if x.dim() != 2 or x.dtype is not torch.float32:
        raise ValueError(f"x: expected float32 [T, H], got {describe(x)}")
    num_rows, width = x.shape
    if weight.dim() != 1 or weight.shape[0] != width or weight.dtype is not torch.float32:
        raise ValueError(f"weight: expected float32 [{width}], got {describe(weight)}")
    if out is None:
        out = torch.empty_like(x)
    else:
        check_out(out, num_rows, width)
    library = backend.library
    if library is None or not x.is_cpu:
        return out.copy_(reference.rms_norm(x, weight, eps))
    if x.stride(1) != 1:
        x = x.contiguous()
    if weight.stride(0) != 1:
        weight = weight.contiguous()
    library.rms_norm(
        x.data_ptr(),
        x.stride(0),
        weight.data_ptr(),
        out.data_ptr(),
        out.stride(0),
        num_rows,
        width,
        eps,
        torch.get_num_threads(),
    )
    return out
