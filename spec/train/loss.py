"""What a head is trained for, and what it is measured by: its distribution beside the target's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decodex.spec.train.batches import Batch

__all__ = ["DepthScores", "depth_loss", "depth_scores", "target_probs"]

_BLOCK_ROWS = 64  # of 8,192 fp32 logits: 2 MiB


def target_probs(batch: Batch, output: Tensor) -> Tensor:
    """The target's probabilities of the draft vocabulary, [B, A + D - 1, V_d]; the rest of the mass is elsewhere.

    `output` [V_d, H]: the rows of the target's output layer.
    """
    logits = (batch.next_states @ output.T).float()
    return (logits - batch.log_totals[..., None]).exp_()


def depth_loss(normed: Tensor, output: Tensor, probs: Tensor, is_valid: Tensor, overlap_share: float) -> Tensor:
    """Mean over valid rows: cross-entropy to the target's `probs` [B, A, V_d], or 1 - sum min(p, q), mixed.

    normed [B, A, H] @ output.T [H, V_d] are the head's logits. The target's mass outside of the draft vocabulary counts
    in neither.
    """
    rows = is_valid.flatten().nonzero().flatten()
    normed = normed.flatten(0, 1).index_select(0, rows)
    flat = probs.flatten(0, 1)
    loss: Tensor = _OutputLoss.apply(normed, output, flat, rows, overlap_share)  # type: ignore[no-untyped-call]
    return loss / max(len(rows), 1)


class _OutputLoss(torch.autograd.Function):
    """The sum of all rows' losses, with its gradient: block by block of rows, while they are in the cache, the logits
    [N, V_d] become their own gradient. As a graph of single operations this took two thirds of a step on a CPU."""

    @staticmethod
    def forward(ctx: Any, normed: Tensor, output: Tensor, probs: Tensor, rows: Tensor, overlap_share: float) -> Tensor:
        device = normed.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else output.dtype
        loss = probs.new_zeros(())
        with torch.autocast(device, enabled=False):
            inputs = normed.to(dtype), output.to(dtype)
            logits = inputs[0] @ inputs[1].T
            for block, places in zip(torch.split(logits, _BLOCK_ROWS), torch.split(rows, _BLOCK_ROWS), strict=True):
                of_block, gradient = _row_losses(block.to(probs.dtype), probs.index_select(0, places), overlap_share)
                loss += of_block
                block.copy_(gradient)
        ctx.save_for_backward(logits, *inputs)
        ctx.dtypes = normed.dtype, output.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        gradient, normed, output = ctx.saved_tensors
        of_normed = (gradient @ output).to(ctx.dtypes[0]) * scale
        of_output = (gradient.T @ normed).to(ctx.dtypes[1]) * scale if ctx.needs_input_grad[1] else None
        return of_normed, of_output, None, None, None


def _row_losses(logits: Tensor, p: Tensor, overlap_share: float) -> tuple[Tensor, Tensor]:
    """The sum of the losses of rows of logits [N, V_d], which are used up, and the gradient [N, V_d]."""
    logits -= logits.amax(dim=-1, keepdim=True)
    mass, given = p.sum(dim=-1), torch.linalg.vecdot(p, logits)
    q = logits.exp_()
    total = q.sum(dim=-1)
    q /= total[:, None]
    loss = (1 - overlap_share) * (mass * total.log() - given).sum()
    if overlap_share == 0:
        return loss, q.mul_(mass[:, None]).sub_(p)
    below = torch.where(q < p, q, 0.0)
    loss -= overlap_share * torch.minimum(p, q).sum()
    q *= ((1 - overlap_share) * mass + overlap_share * below.sum(dim=-1))[:, None]
    return loss, q.sub_(p, alpha=1 - overlap_share).sub_(below, alpha=overlap_share)


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
