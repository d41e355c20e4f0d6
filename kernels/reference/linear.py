"""Linear layers without the compiled library: oneDNN-packed fp32, or one row at a time where oneDNN is absent.

Both are bitwise invariant per row to the number of rows and threads, as `torch.nn.functional.linear` is not. Products
of a single row are left out: matrix times vector adds up in another order (oneDNN with AVX-512), or in one that
depends on the number of threads (MKL). Such a row gets a row of zeros beside it.
"""

import torch
from torch import Tensor

MAX_ROWS_PER_CALL = 256  # oneDNN was checked to be row-invariant up to here, packed once with hint 32
_PACK_HINT = 32


def quantize_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [N,K] -> (int8 [N,K], scale [N] fp32), symmetric per output channel, rounded to nearest even."""
    weight = weight.float()
    scale = weight.abs().amax(dim=1) / 127 if weight.shape[1] else weight.new_zeros(weight.shape[0])
    scale = torch.where(scale > 0, scale, 1.0)
    return (weight / scale[:, None]).round_().clamp_(-127, 127).to(torch.int8), scale


def dequantize_int8(quantized: Tensor, scale: Tensor) -> Tensor:
    """(int8 [N,K], scale [N]) -> [N,K] fp32."""
    return quantized.float() * scale[:, None]


def has_onednn() -> bool:
    return torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def onednn_pack(weight: Tensor) -> Tensor:
    """weight [N,K] fp32 -> oneDNN's own layout (opaque)."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_HINT)
    return packed


def linear_onednn(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """x [M,K] fp32 -> [M,N]."""
    chunks = []
    for rows in torch.split(x.contiguous(), MAX_ROWS_PER_CALL):
        several = _beside_zeros(rows) if len(rows) == 1 else rows
        chunks.append(torch.ops.mkldnn._linear_pointwise(several, packed, bias, "none", [], "")[: len(rows)])
    return chunks[0] if len(chunks) == 1 else torch.cat(chunks)


def linear_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [M,K], weight [N,K] fp32 -> [M,N], each row by a product of its own (a fresh copy: same alignment)."""
    out = x.new_empty(x.shape[0], weight.shape[0])
    for i, row in enumerate(x):
        out[i] = torch.nn.functional.linear(_beside_zeros(row[None]), weight, bias)[0]
    return out


def _beside_zeros(row: Tensor) -> Tensor:
    """[1,K] -> [2,K]."""
    return torch.cat((row, torch.zeros_like(row)))
