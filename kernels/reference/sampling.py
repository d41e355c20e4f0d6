"""Steps 6 to 8 of the row pipeline with a full sort: the oracle of `kernels/sampling.py`, equal token for token."""

from __future__ import annotations

import torch
from torch import Tensor

from decodex.kernels.reference.rng import exp_nonpositive, gumbel_noise, log_positive
from decodex.kernels.sampling_rows import SamplingRows

MASS_UNIT = 2.0**40  # softmax mass is counted in int64 steps of 2^-40: sums do not depend on their order
_SMALLEST_NORMAL = 2.0**-126


def num_kept(x: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """How many of each row's sorted x [L, V] (descending, maximum 0) the truncations keep, [L] int64."""
    vocab_size = x.shape[1]
    lowest = torch.where(min_p > 0, log_positive(min_p.clamp(min=_SMALLEST_NORMAL)), -torch.inf)
    count = ((x >= lowest[:, None]) & (x > -torch.inf)).sum(1)
    is_top_k = (top_k > 0) & (top_k < vocab_size)
    count = torch.where(is_top_k, torch.minimum(count, top_k.long()), count)
    is_kept = torch.arange(vocab_size, device=x.device) < count[:, None]
    mass = torch.where(is_kept, (exp_nonpositive(x) * MASS_UNIT).long(), 0).cumsum(1)
    needed = top_p.double() * mass[:, -1].double()
    nucleus = (mass.double() < needed[:, None]).sum(1) + 1
    return torch.where(top_p < 1, torch.minimum(count, nucleus), count)


def sample_rows(logits: Tensor, rows: SamplingRows) -> Tensor:
    """[L, V] fp32 logits -> [L] int64 token ids, -1 for a row that has no token to give."""
    temperature = rows.temperature
    vocab_size = logits.shape[1]
    ids = torch.arange(vocab_size, device=logits.device)
    top = logits.amax(1, keepdim=True)
    is_bad = (torch.isnan(top) | torch.isinf(top)).squeeze(1) | ~(temperature >= 0)
    greedy = torch.where(logits == top, ids, vocab_size).amin(1)
    scale = torch.where(temperature > 0, temperature, 1.0)[:, None]
    ordered, order = torch.sort(logits, dim=1, descending=True, stable=True)  # stable: ties to the lower id
    x = (ordered - top) / scale
    is_kept = ids < num_kept(x, rows.top_k, rows.top_p, rows.min_p)[:, None]
    score = x + gumbel_noise(rows.seeds, rows.positions, vocab_size, 0).gather(1, order)
    score = torch.where(is_kept, score, -torch.inf)
    best = score.amax(1, keepdim=True)
    drawn = torch.where((score == best) & is_kept, order, vocab_size).amin(1)
    drawn = torch.where(drawn == vocab_size, -1, drawn)
    return torch.where(is_bad, -1, torch.where(temperature == 0, greedy, drawn))


def softmax_mass(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Row maximum [L] fp32 and the sum of trunc(exp(logit - maximum) * 2^40) [L] int64 (-1: no finite maximum)."""
    top = logits.amax(1, keepdim=True)
    mass = (exp_nonpositive(logits - top) * MASS_UNIT).long().sum(1)
    is_bad = (torch.isnan(top) | torch.isinf(top)).squeeze(1)
    return top.squeeze(1), torch.where(is_bad, -1, mass)
