"""What every launch shares: the grid over rows and tiles, the device, plain arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
TILE = 2048  # logits of one program
BLOCK = 64  # logits under one maximum


def num_tiles(vocab_size: int) -> int:
    return -(-vocab_size // TILE)


def power_of_two(n: int) -> int:
    """The smallest power of two >= n, n from 1."""
    return 1 << (n - 1).bit_length()


def on_device(body: Callable[Concatenate[Tensor, P], R]) -> Callable[Concatenate[Tensor, P], R]:
    """Runs a body on the device of its first tensor: kernels start on the current one."""

    @functools.wraps(body)
    def run(first: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if not first.is_cuda:  # the interpreter
            return body(first, *args, **kwargs)
        with torch.cuda.device(first.device):
            return body(first, *args, **kwargs)

    return run


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, num_warps: int = 4, **constants: Any) -> None:
    """Runs kernel(*args, **constants) on the current device, with multiplies and adds kept apart."""
    kernel[grid](*args, **constants, num_warps=num_warps, enable_fp_fusion=False)
