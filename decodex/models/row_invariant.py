"""Makes transformers' modeling code row-invariant and run on packed weights, without changing that code.

A `TorchFunctionMode` sees every torch call of a forward. Products with a model parameter go to the packed weight of
that parameter; look-ups too (a tied embedding is one copy). Transcendental functions run in pieces that begin at a
row: torch computes the last few elements of each thread's share with other code than the rest, so that in one call
a value could depend on how many rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from decodex.kernels.linear import PackedLinear
from decodex.kernels.reference.linear import linear_rows

__all__ = ["PackedWeights", "RowInvariant"]

_GRAIN = 16384  # elements up to which torch never splits an elementwise call between threads (gelu has the least)
_LANES = 64  # elements of two vectors on the widest CPU: below this granule there is a scalar tail

_F = torch.nn.functional
_ELEMENTWISE: frozenset[Any] = frozenset(
    getattr(owner, name)
    for owner, names in (
        (_F, ("silu", "gelu", "elu", "mish", "softplus", "logsigmoid", "sigmoid", "tanh", "hardswish")),
        (torch, ("sigmoid", "tanh", "exp", "log", "cos", "sin", "erf", "log1p", "expm1", "exp2")),
        (torch.Tensor, ("sigmoid", "tanh", "exp", "log", "cos", "sin", "erf", "log1p", "expm1")),
    )
    for name in names
)


class PackedWeights:
    """Parameters of one model and their packed forms. A packed parameter keeps its shape but no memory.

    `pack(weight, bias)` packs raw parameters that products turn out to use (routers) when they are first met."""

    def __init__(self, pack: Callable[[Tensor, Tensor | None], PackedLinear]) -> None:
        self._pack = pack
        self._packed: dict[int, tuple[nn.Parameter, PackedLinear, bool]] = {}  # id -> kept alive, packed, has bias
        self._tables: dict[int, tuple[nn.Parameter, Tensor]] = {}  # id -> kept alive, embedding [N, K] as stored

    @property
    def nbytes(self) -> int:
        """Bytes of all packed weights and embeddings."""
        tables = sum(table.numel() * table.element_size() for _, table in self._tables.values())
        return tables + sum(packed.nbytes for _, packed, _ in self._packed.values())

    def rows(self, ids: Tensor, weight: Tensor) -> Tensor:
        """ids [...] int64 -> rows of an embedding, [..., K] fp32."""
        packed = self.find(weight)
        if packed is not None:
            return packed.rows(ids.reshape(-1)).view(*ids.shape, packed.in_features)
        table = self._tables[id(weight)][1] if id(weight) in self._tables else weight
        return _F.embedding(ids, table).float()

    def adopt_table(self, weight: nn.Parameter) -> None:
        """Keep an embedding in its stored dtype behind a parameter that says fp32 (code scales by its dtype)."""
        self._tables[id(weight)] = (weight, weight.data)
        empty_parameter(weight)

    def find(self, weight: Tensor) -> PackedLinear | None:
        """The packed form of a parameter (not of a view of it)."""
        entry = self._packed.get(id(weight))
        return None if entry is None else entry[1]

    def adopt(self, weight: nn.Parameter, bias: Tensor | None, packed: PackedLinear) -> None:
        """Take over a weight [N, K] that was packed with `bias` [N], and let its memory go."""
        self._packed[id(weight)] = (weight, packed, bias is not None)
        empty_parameter(weight)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., K] fp32 -> [..., N]; a parameter is packed when first met, another tensor multiplied row by row."""
        entry = self._packed.get(id(weight))
        flat = x.reshape(-1, x.shape[-1]).float()
        if entry is None and isinstance(weight, nn.Parameter) and weight.dim() == 2 and weight.is_floating_point():
            self.adopt(weight, bias, self._pack(weight.data, bias))
            entry = self._packed[id(weight)]
        if entry is None:
            wide_bias = None if bias is None else bias.float()
            return linear_rows(flat, weight.float(), wide_bias).view(*x.shape[:-1], weight.shape[0])
        _, packed, has_bias = entry
        out = packed(flat)
        if bias is not None and not has_bias:
            out += bias
        return out.view(*x.shape[:-1], packed.out_features)


class RowInvariant(TorchFunctionMode):
    """Active during a forward of a transformers model whose weights are in `weights`."""

    def __init__(self, weights: PackedWeights) -> None:
        super().__init__()
        self._weights = weights

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func is _F.linear:
            return self._weights.linear(*args, **named)
        if func is _F.embedding:
            return self._weights.rows(args[0], args[1] if len(args) > 1 else named["weight"])
        if func in _ELEMENTWISE and args and isinstance(args[0], Tensor):
            return _by_rows(func, args, named)
        return func(*args, **named)


def empty_parameter(parameter: nn.Parameter) -> None:
    """Free a parameter's memory but keep its shape; fp32, the dtype that modeling code should compute in."""
    parameter.data = torch.zeros(1, device=parameter.device).expand(parameter.shape)


def _by_rows(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Pieces of whole rows that one thread takes, rows padded so that there is no tail."""
    x: Tensor = args[0]
    width = x.shape[-1] if x.dim() else 1
    rows = x.numel() // max(width, 1)
    is_aligned = width % _LANES == 0
    is_plain = x.device.type != "cpu" or not x.is_floating_point() or kwargs.get("inplace", False)
    if is_plain or rows == 0 or (is_aligned and x.numel() <= _GRAIN):
        return func(*args, **kwargs)
    flat = x.reshape(rows, width)
    padded = flat if is_aligned else _F.pad(flat, (0, -width % _LANES))
    per_piece = max(_GRAIN // padded.shape[1], 1)
    pieces = [func(padded[row : row + per_piece], *args[1:], **kwargs) for row in range(0, rows, per_piece)]
    whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    return whole[:, :width].reshape(x.shape)
