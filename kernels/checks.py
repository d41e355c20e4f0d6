"""Argument checks shared by the ops: cheap on the good path, "expected ..., got ..." on the bad one."""

import torch
from torch import Tensor


def describe(tensor: Tensor) -> str:
    """For error texts: "float32 [3, 4] on cpu"."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} on {tensor.device}"


def check_out(out: Tensor, num_rows: int, width: int, name: str = "out") -> None:
    """ValueError unless out is float32 [num_rows, width] with contiguous columns (any row stride)."""
    if out.dim() != 2 or out.shape[0] != num_rows or out.shape[1] != width or out.dtype is not torch.float32:
        raise ValueError(f"{name}: expected float32 [{num_rows}, {width}], got {describe(out)}")
    if out.stride(1) != 1 and out.numel():
        raise ValueError(f"{name}: expected contiguous columns, got strides {out.stride()}")
