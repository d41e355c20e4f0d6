"""Root-mean-square norm, any device."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., H], weight [H] -> x / sqrt(mean(x^2) + eps) * weight."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight
