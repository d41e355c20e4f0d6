"""What a head is trained for, and what it is measured by: its distribution beside the target's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from decodex.spec.train.batches import Batch

__all__ = ["DepthScores", "depth_losses", "depth_scores", "target_probs"]

_ROWS_STEP = 256
_BLOCK_ROWS = 64  # of 8,192 fp32 logits: 2 MiB


def target_probs(batch: Batch, output: Tensor) -> Tensor:
    """The target's probabilities of the draft vocabulary, [B, A + D - 1, V_d]; the rest of the mass is elsewhere.

    `output` [V_d, H]: the rows of the target's output layer.
    """
    logits = (batch.next_states @ output.T).float()
    return (logits - batch.log_totals[..., None]).exp_()


def depth_losses(
    normed: Sequence[Tensor], output: Tensor, probs: Tensor, is_valid: Tensor, overlap_share: float
) -> Tensor:
    """Of each depth the mean over its valid rows, [D]: cross-entropy to the target, or 1 - sum min(p, q), mixed.

    normed [B, A, H] of each depth @ output.T [H, V_d] are the head's logits; row a of depth k is compared with
    `probs` [B, A + D - 1, V_d] at a + k where `is_valid` [B, A + D - 1] is there. The target's mass outside of the
    draft vocabulary counts in neither.
    """
    size, span = normed[0].shape[1], probs.shape[1]
    rows, places, counts = [], [], []
    for depth, each in enumerate(normed):
        sequence, row = is_valid[:, depth : depth + size].nonzero(as_tuple=True)
        rows.append(each.flatten(0, 1).index_select(0, sequence * size + row))
        places.append(sequence * span + row + depth)
        counts.append(len(row))
    given = (torch.cat(rows), output, probs.flatten(0, 1), torch.cat(places))
    losses: Tensor = _OutputLoss.apply(*given, tuple(counts), overlap_share)  # type: ignore[no-untyped-call]
    return losses / torch.tensor(counts, device=losses.device).clamp(min=1)


class _OutputLoss(torch.autograd.Function):
    """The sums of all rows' losses by depth, [D], with their gradient: block by block of rows, while they are in the
    cache, the logits [N, V_d] become their own gradient. As a graph of single operations this took two thirds of a step
    on a CPU. N is rounded up: of each new size oneDNN first has to make its products, which takes longer than they."""

    @staticmethod
    def forward(
        ctx: Any, normed: Tensor, output: Tensor, probs: Tensor, places: Tensor, counts: Sequence[int], share: float
    ) -> Tensor:
        device = normed.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else output.dtype
        sums = []
        with torch.autocast(device, enabled=False):
            padding = -len(normed) % _ROWS_STEP
            inputs = functional.pad(normed.to(dtype), (0, 0, 0, padding)), output.to(dtype)
            logits = inputs[0] @ inputs[1].T
            logits[len(normed) :] = 0
            by_depth = torch.split(logits[: len(normed)], list(counts)), torch.split(places, list(counts))
            for of_depth, at in zip(*by_depth, strict=True):
                loss = probs.new_zeros(())
                for block, rows in zip(torch.split(of_depth, _BLOCK_ROWS), torch.split(at, _BLOCK_ROWS), strict=True):
                    of_block, gradient = _row_losses(block.to(probs.dtype), probs.index_select(0, rows), share)
                    loss += of_block
                    block.copy_(gradient)
                sums.append(loss)
        ctx.save_for_backward(logits, *inputs)
        ctx.counts, ctx.dtypes = torch.tensor([*counts, padding], device=normed.device), (normed.dtype, output.dtype)
        return torch.stack(sums)

    @staticmethod
    def backward(ctx: Any, scales: Tensor) -> tuple[Tensor, Tensor | None, None, None, None, None]:
        gradient, normed, output = ctx.saved_tensors
        scale = torch.cat((scales, scales.new_zeros(1))).repeat_interleave(ctx.counts)[:, None]
        of_normed = (gradient @ output).to(ctx.dtypes[0]) * scale
        of_output = None
        if ctx.needs_input_grad[1]:
            of_output = (gradient.T @ (normed * scale).to(normed.dtype)).to(ctx.dtypes[1])
        return of_normed[: len(normed) - int(ctx.counts[-1])], of_output, None, None, None, None


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
