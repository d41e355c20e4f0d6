"""What a draft head is to its proposer, and the parts that heads share with the target or bring along."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from decodex.spec.decoder_layer import Entries
from decodex.spec.head_weights import HeadError, HeadWeights, read_count
from decodex.spec.target import KVLayer, StepTensors, TargetParts

__all__ = ["Head", "load_embedding", "load_vocabulary"]


class Head(Protocol):
    """Weights that predict. Entry i of its KV holds token i + shift, lives at place i and has position i."""

    shift: int  # 1: an entry pairs a token with the hidden state before it; 0: a model of its own
    taps: tuple[int, ...]
    needs_hidden: bool
    kv_layers: list[KVLayer]
    token_map: Tensor | None  # [V_d] int64 target ids of its logits; None: the target's vocabulary
    max_position: int  # positions 0..max_position-1 exist

    def inputs(self, step: StepTensors, rows: Tensor) -> Tensor | None:
        """What committed entries are paired with: [R, h] of the step's `rows` [R] int64."""
        ...

    def forward(
        self, token_ids: Tensor, hidden: Tensor | None, entries: Entries, step: StepTensors
    ) -> tuple[Tensor | None, Tensor]:
        """Write R entries of tokens [R] int64 paired with `hidden` [R, h] (which may be overwritten); of the wanted
        rows, what the next entry is paired with [W, h], and the logits [W, V_d]."""
        ...


def load_embedding(weights: HeadWeights, name: str, width: int, target: TargetParts) -> Callable[[Tensor], Tensor]:
    """The head's own embedding where it has one, else the target's."""
    if name in weights:
        table = weights.matrix(name, (target.vocab_size, width))
        return lambda ids: table.index_select(0, ids).float()
    if width != target.hidden_size:
        raise HeadError(
            f"{weights.source}: tensor {name!r} is missing, and the target's is {target.hidden_size} wide, not {width}"
        )
    return target.embed


def load_vocabulary(
    weights: HeadWeights, config: Mapping[str, Any], target: TargetParts, name: str = "d2t"
) -> Tensor | None:
    """The token map of a reduced vocabulary (`d2t` holds target id - draft id), None for the target's own."""
    size = read_count(config, "draft_vocab_size", target.vocab_size)
    if name not in weights:
        if size != target.vocab_size:
            raise HeadError(f"{weights.source}: tensor {name or 'd2t'!r} is missing, draft_vocab_size is {size}")
        return None
    ids = torch.arange(size) + weights.take(name, (size,)).to(torch.int64)
    low, high, num_distinct = int(ids.min()), int(ids.max()), len(set(ids.tolist()))
    if low < 0 or high >= target.vocab_size or num_distinct != size:
        raise HeadError(
            f"{weights.source}: {name!r} gives {num_distinct} target ids in {low}..{high}, "
            f"expected {size} in 0..{target.vocab_size - 1}"
        )
    if "t2d" in weights:
        drafted = torch.zeros(target.vocab_size, dtype=torch.bool).index_fill_(0, ids, True)
        if not torch.equal(weights.take("t2d", (target.vocab_size,)).bool(), drafted):
            raise HeadError(f"{weights.source}: 't2d' marks other tokens than 'd2t' gives")
    return ids.to(weights.device)
