"""What a model is to the engine: one forward over a flat batch of tokens. Both paths implement `CausalLM`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from decodex.kernels.attention import RowContexts
from decodex.kv_cache import KVCache, LayerKV

__all__ = ["CausalLM", "ForwardBatch", "ForwardOutput"]


@dataclass(frozen=True)
class ForwardBatch:
    """The tokens of one step, all requests in one row dimension."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int32
    slot_mapping: Tensor  # [T] int64, where each token's keys and values go
    rows: RowContexts  # what each of the T rows may read
    logits_rows: Tensor  # [L] int64, indices into T


@dataclass(frozen=True)
class ForwardOutput:
    """Results of one step; no tensor in it is written again by a later forward."""

    logits: Tensor  # [L, V] fp32
    hidden: Tensor | None = None  # [T, H] fp32, after the final norm, where it was asked for
    taps: dict[int, Tensor] = field(default_factory=dict)  # layer -> [T, H] residual stream after it


class CausalLM(Protocol):
    """A loaded model. `replayable` says that a row's result never depends on the other rows of the batch."""

    name: str
    vocab_size: int  # width of the logits
    hidden_size: int
    num_layers: int
    max_position: int  # positions 0..max_position-1 exist
    kv_spec: list[LayerKV]
    replayable: bool
    weight_nbytes: int
    weights_digest: str  # sha256 over names, dtypes, shapes and contents of the weights as stored

    def forward(
        self, batch: ForwardBatch, kv: KVCache, taps: tuple[int, ...] = (), wants_hidden: bool = False
    ) -> ForwardOutput:
        """Run all tokens, writing their keys and values to the first `num_layers` layers of `kv`; logits only for
        `batch.logits_rows`, the outputs of the `taps` layers and the final hidden states for all rows."""
        ...
