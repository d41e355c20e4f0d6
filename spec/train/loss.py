"""What a head is trained for, and what it is measured by: its distribution beside the target's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from decodex.spec.train.batches import Batch

__all__ = ["DepthScores", "depth_loss", "depth_scores", "target_probs"]


def target_probs(batch: Batch, output: Tensor) -> Tensor:
    """The target's probabilities of the draft vocabulary, [B, A + D - 1, V_d]; the rest of the mass is elsewhere.

    `output` [V_d, H]: the rows of the target's output layer.
    """
    logits = (batch.next_states @ output.T).float()
    return (logits - batch.log_totals[..., None]).exp_()


def depth_loss(logits: Tensor, probs: Tensor, is_valid: Tensor, overlap_share: float) -> Tensor:
    """Mean over valid rows: cross-entropy to the target's `probs` [B, A, V_d], or 1 - sum min(p, q), mixed.

    logits [B, A, V_d]. The target's mass outside of the draft vocabulary counts in neither.
    """
    log_q = logits.log_softmax(dim=-1)
    per_row = torch.zeros_like(is_valid, dtype=logits.dtype)
    if overlap_share < 1:
        per_row = per_row - (1 - overlap_share) * (probs * log_q).sum(dim=-1)
    if overlap_share > 0:
        per_row = per_row - overlap_share * torch.minimum(probs, log_q.exp()).sum(dim=-1)
    return (per_row * is_valid).sum() / is_valid.sum().clamp(min=1)


@dataclass
class DepthScores:
    """Sums over rows of one depth."""

    num_rows: int = 0
    num_right: int = 0  # the head's top token is the target's
    overlap: float = 0.0  # sum min(p, q)
    num_started: int = 0  # rows of greedy answers of which every earlier depth was right too
    num_reached: int = 0  # of these, the rows that are right at this depth

    def add(self, other: DepthScores) -> None:
        """Count the other's rows too."""
        self.num_rows += other.num_rows
        self.num_right += other.num_right
        self.overlap += other.overlap
        self.num_started += other.num_started
        self.num_reached += other.num_reached


def depth_scores(
    logits: Tensor, probs: Tensor, tops: tuple[Tensor, Tensor], is_valid: Tensor, is_alive: Tensor, is_greedy: Tensor
) -> tuple[DepthScores, Tensor]:
    """The scores of one depth, and the rows [B, A] that are right here and were at all depths before.

    `tops`: target ids of the draft vocabulary [V_d], and the target's top ids [B, A]; `is_alive` [B, A]: right so far;
    `is_greedy` [B]: answers at temperature 0, whose own tokens are the top ones.
    """
    vocabulary, top_ids = tops
    is_right = (vocabulary[logits.argmax(dim=-1)] == top_ids) & is_valid
    overlap = torch.minimum(probs, logits.softmax(dim=-1)).sum(dim=-1) * is_valid
    started = is_alive & is_valid & is_greedy[:, None]
    reached = started & is_right
    scores = DepthScores(
        int(is_valid.sum()), int(is_right.sum()), float(overlap.sum()), int(started.sum()), int(reached.sum())
    )
    return scores, is_right & is_alive
