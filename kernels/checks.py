"""Argument checks shared by the ops: cheap on the good path, "expected ..., got ..." on the bad one."""

import torch
from torch import Tensor


def describe(tensor: Tensor) -> str:
    """For error texts: "float32 [3, 4] on cpu"."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} on {tensor.device}"


def check_out(out: Tensor, like: Tensor, num_rows: int, width: int, name: str = "out") -> int:
    """The row stride of out; ValueError unless it is float32 [num_rows, width], contiguous columns, beside `like`."""
    if out.shape != (num_rows, width) or out.dtype is not torch.float32 or out.is_cpu is not like.is_cpu:
        raise ValueError(f"{name}: expected float32 [{num_rows}, {width}] on {like.device}, got {describe(out)}")
    row_stride, column_stride = out.stride()
    if column_stride != 1 and width > 1 and num_rows:
        raise ValueError(f"{name}: expected contiguous columns, got strides {out.stride()}")
    return row_stride
