"""What proposers with weights see of the target: its parts once, the tensors of each step, and who chooses tokens.

Owned by the engine, which fills these in; nothing here computes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from decodex.spec.draft import Draft
from decodex.spec.proposer import ProposerView

__all__ = ["Choices", "Chooser", "KVLayer", "StepTensors", "TargetParts", "TensorProposer"]

_UNITS = 64  # unit vectors that go through the output layer at once
KVLayer = tuple[int, int, int]  # num_kv_heads, k_dim, v_dim


@dataclass(frozen=True)
class TargetParts:
    """What heads share with the target model."""

    embed: Callable[[Tensor], Tensor]  # ids [T] int64 -> [T, H] fp32
    head: Callable[[Tensor], Tensor]  # [T, H] fp32, after the final norm -> logits [T, V] fp32
    rope_frequencies: Callable[[Mapping[str, Any]], Tensor]  # a head's config.json -> angle per position [R/2] fp32
    hidden_size: int
    vocab_size: int
    num_layers: int
    max_position: int
    device: torch.device

    def head_rows(self, token_ids: Tensor) -> Tensor:
        """The rows of the output layer for tokens [N] int64: [N, H], bfloat16 where that is exact, else fp32."""
        units = torch.eye(self.hidden_size, device=self.device)
        rows = torch.cat(
            [self.head(part)[:, token_ids] for part in units.tensor_split(-(-self.hidden_size // _UNITS))]
        ).T.contiguous()
        short = rows.bfloat16()
        return short if torch.equal(short.float(), rows) else rows


@dataclass(frozen=True)
class Choices:
    """Tokens for each of R rows, best first and at most as many as asked for; none where nothing is allowed."""

    token_ids: list[list[int]]  # [R] lists of target ids
    scores: list[list[float]]  # [R] lists in [0, 1]: how likely the target is to take the token after the row's path
    laws: Tensor | None = None  # [R, V] fp32 that the tokens were drawn from; None: they are point masses


class Chooser(Protocol):
    """Turns draft logits into tokens: the one row pipeline (parameters, noise, grammar), owned by the engine."""

    def choose(
        self,
        logits: Tensor,
        views: Sequence[int],
        paths: Sequence[tuple[int, ...]],
        width: int,
        token_map: Tensor | None,
    ) -> Choices:
        """At most `width` tokens a row. logits [R, V_d] fp32 (may be overwritten) of rows that continue views[r] (index
        into `propose`'s views) after the draft tokens paths[r]; token_map [V_d] int64 target ids, None: the same."""
        ...


@dataclass(frozen=True)
class StepTensors:
    """One target step: what it left behind, and the proposer's own layers of the paged KV."""

    hidden: Tensor | None  # [T, H] fp32 after the final norm; None if the proposer does not need it
    taps: Mapping[int, Tensor]  # layer -> [T, H] fp32, residual stream at the layer's output
    block_tables: Tensor  # [S, max_blocks] int32, with blocks for n + max_nodes places of every view
    kv_k: Sequence[Tensor]  # one for each of `kv_layers`: [num_slots, Hkv, Dk] fp32
    kv_v: Sequence[Tensor]  # the same: [num_slots, Hkv, Dv] fp32
    block_size: int
    chooser: Chooser | None  # None: nothing is drafted


class TensorProposer(Protocol):
    """A proposer that has KV of its own: it is called in every step with every sequence that computed tokens in it."""

    name: str
    taps: tuple[int, ...]  # layers whose outputs it needs
    needs_hidden: bool  # whether it needs the hidden states after the final norm
    kv_layers: list[KVLayer]  # its layers in the engine's KV cache

    def begin(self, step: StepTensors) -> None:
        """The tensors that the next `propose` reads."""
        ...

    def propose(self, views: Sequence[ProposerView]) -> list[Draft | None]:
        """Write the KV of view.rows for all views, then a draft for each with max_depth > 0."""
        ...

    def forget(self, key: int) -> None:
        """The sequence is over."""
        ...
