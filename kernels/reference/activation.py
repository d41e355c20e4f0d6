"""Gated activation, any device."""

import torch
from torch import Tensor


def silu_mul(x: Tensor) -> Tensor:
    """x [T,2I] -> [T,I]: silu of the first half times the second."""
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up
