"""Steps 6 to 8 of the row pipeline with full sorts: the oracle of `kernels/sampling.py`, equal token for token.

Sums that decide anything are order-free (int64 steps of 2^-40) or in one fixed order (`ordered_sum`)."""

from __future__ import annotations

import torch
from torch import Tensor

from decodex.kernels.reference.rng import exp_nonpositive, gumbel_noise, log_positive, uniform
from decodex.kernels.sampling_rows import RareRows, SamplingRows

MASS_UNIT = 2.0**40  # softmax mass is counted in int64 steps of 2^-40: sums do not depend on their order
PURPOSE_XTC = 1
_SMALLEST_NORMAL = 2.0**-126
_LOWEST = -87.0  # exp_nonpositive is 0 below


def mass_of(x: Tensor) -> Tensor:
    """exp of fp32 x <= 0 in int64 steps of 2^-40."""
    return (exp_nonpositive(x) * MASS_UNIT).long()


def ordered_sum(values: Tensor) -> Tensor:
    """Sum over the last dimension by adding the upper half to the lower one: one order on every device."""
    while values.shape[-1] > 1:
        half = (values.shape[-1] + 1) // 2
        low, high = values[..., :half], values[..., half:]
        num_pairs = high.shape[-1]
        values = torch.cat([low[..., :num_pairs] + high, low[..., num_pairs:]], dim=-1)
    return values.squeeze(-1)


def mean_surprise(x: Tensor, is_kept: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy H of the softmax over the kept x [L, V], and H - log(sum of exp(x)), both [L] fp32."""
    total = torch.where(is_kept, mass_of(x), 0).sum(1).clamp(min=1).double()
    weighted = exp_nonpositive(x) * -x.clamp(min=_LOWEST)
    excess = torch.where(is_kept, (weighted * MASS_UNIT).long(), 0).sum(1).double()
    mean = (excess / total).float()
    return log_positive((total / MASS_UNIT).float()) + mean, mean


def dynamic_temperature(gap: Tensor, temperature: Tensor, rare: RareRows) -> Tensor:
    """Temperature [L] between T - range and T + range by the entropy of gap [L, V] = logit - maximum (llama.cpp)."""
    is_finite = gap > -torch.inf
    entropy, _ = mean_surprise(gap, is_finite)
    count = is_finite.sum(1)
    share = torch.where(count > 1, entropy / log_positive(count.clamp(min=2).float()), 0.0)
    power = exp_nonpositive((rare.dynatemp_exponent * log_positive(share.clamp(min=_SMALLEST_NORMAL))).clamp(max=0.0))
    power = torch.where(share > 0, power, (rare.dynatemp_exponent == 0).float())
    low = (temperature - rare.dynatemp_range).clamp(min=0.0)
    high = temperature + rare.dynatemp_range
    is_used = (rare.dynatemp_range > 0) & (temperature > 0)
    return torch.where(is_used, low + (high - low) * power, temperature)


def within_sigmas(gap: Tensor, num_sigmas: Tensor) -> Tensor:
    """Which gap [L, V] = logit - maximum is at least -n standard deviations of the finite ones; all where n <= 0."""
    is_finite = gap > -torch.inf
    count = is_finite.sum(1).double()
    wide = torch.where(is_finite, gap, 0.0).double()
    mean = ordered_sum(wide) / count
    deviation = torch.where(is_finite, wide - mean[:, None], 0.0)
    sigma = torch.sqrt(ordered_sum(deviation * deviation) / count)
    return (gap.double() >= -(num_sigmas.double() * sigma)[:, None]) | (num_sigmas <= 0)[:, None]


def order_of(logits: Tensor, is_kept: Tensor) -> Tensor:
    """Ids [L, V] by logit descending, id ascending; tokens that are not kept come last."""
    kept = torch.where(is_kept, logits, -torch.inf)
    return torch.sort(kept, dim=1, descending=True, stable=True).indices  # stable: ties to the lower id


def shortest_prefix(order: Tensor, is_kept: Tensor, mass: Tensor, share: Tensor) -> Tensor:
    """The kept tokens [L, V] of the shortest prefix of `order` that has `share` [L] of the kept mass; all for 1."""
    so_far = torch.where(is_kept, mass, 0).gather(1, order).cumsum(1)
    needed = share.double() * so_far[:, -1].double()
    count = (so_far.double() < needed[:, None]).sum(1) + 1
    is_in = torch.arange(order.shape[1], device=order.device) < count[:, None]
    is_in = torch.zeros_like(is_kept).scatter_(1, order, is_in)
    return is_kept & (is_in | (share >= 1)[:, None])


def typical(x: Tensor, is_kept: Tensor, mass: Tensor, share: Tensor) -> Tensor:
    """Locally typical sampling (arXiv 2202.00666): surprise nearest to the entropy first, then the lower id."""
    _, mean = mean_surprise(x, is_kept)
    distance = torch.where(is_kept, (x + mean[:, None]).abs(), torch.inf)
    order = torch.sort(distance, dim=1, stable=True).indices
    return shortest_prefix(order, is_kept, mass, share)


def at_least(is_kept: Tensor, mass: Tensor, probability: Tensor) -> Tensor:
    """The kept tokens [L, V] with at least this probability [L] under the softmax over the kept ones."""
    total = torch.where(is_kept, mass, 0).sum(1).double()
    return is_kept & (mass.double() >= (probability.double() * total)[:, None])


def cut_off(logits: Tensor, x: Tensor, is_kept: Tensor, mass: Tensor, rare: RareRows) -> Tensor:
    """Epsilon and eta cut-offs (arXiv 2210.15191); the most likely token survives both."""
    best = torch.zeros_like(is_kept).scatter_(1, order_of(logits, is_kept)[:, :1], True) & is_kept
    is_kept = best | at_least(is_kept, mass, rare.epsilon_cutoff)
    entropy, _ = mean_surprise(x, is_kept)
    eta = rare.eta_cutoff.clamp(min=0.0)
    threshold = torch.minimum(eta, torch.sqrt(eta) * exp_nonpositive((-entropy).clamp(max=0.0)))
    return best | at_least(is_kept, mass, threshold)


def exclude_top_choices(order: Tensor, is_kept: Tensor, mass: Tensor, rows: SamplingRows, rare: RareRows) -> Tensor:
    """XTC: of two or more tokens at or above the threshold only the least likely stays, with a probability."""
    coin = uniform(rows.seeds, rows.positions, PURPOSE_XTC) < rare.xtc_probability
    is_counted = at_least(is_kept, mass, rare.xtc_threshold) & coin[:, None]
    is_counted &= ~torch.isin(torch.arange(order.shape[1], device=order.device), rare.exempt)
    place = torch.arange(order.shape[1], device=order.device).expand_as(order)
    place = torch.zeros_like(order).scatter_(1, order, place)
    last = torch.where(is_counted, place, -1).amax(1)
    return is_kept & ~(is_counted & (place < last[:, None]))


def truncation(logits: Tensor, rows: SamplingRows) -> tuple[Tensor, Tensor, Tensor]:
    """Step 7 for logits [L, V] without NaN or +inf: x = (logit - maximum) / T, the kept tokens, T [L]."""
    rare, vocab_size = rows.rare, logits.shape[1]
    gap = logits - logits.amax(1, keepdim=True)
    temperature = rows.temperature
    if rare is not None:
        temperature = dynamic_temperature(gap, temperature, rare)
    x = gap / torch.where(temperature > 0, temperature, 1.0)[:, None]
    mass = mass_of(x)
    lowest = torch.where(rows.min_p > 0, log_positive(rows.min_p.clamp(min=_SMALLEST_NORMAL)), -torch.inf)
    is_kept = (x > -torch.inf) & (x >= lowest[:, None])
    if rare is not None:
        is_kept &= within_sigmas(gap, rare.top_n_sigma)
    order = order_of(logits, is_kept)
    top_k = torch.where(rows.top_k > 0, rows.top_k, vocab_size)
    is_first = torch.arange(vocab_size, device=logits.device) < top_k[:, None]
    is_kept &= torch.zeros_like(is_kept).scatter_(1, order, is_first)
    if rare is not None:
        is_kept = typical(x, is_kept, mass, rare.typical_p)
        is_kept = cut_off(logits, x, is_kept, mass, rare)
        order = order_of(logits, is_kept)
    is_kept = shortest_prefix(order, is_kept, mass, rows.top_p)
    if rare is not None:
        is_kept = exclude_top_choices(order, is_kept, mass, rows, rare)
    return x, is_kept, temperature


def is_bad_row(logits: Tensor) -> Tensor:
    """Rows [L] with NaN, +inf or nothing above -inf: they have no token."""
    top = logits.amax(1)
    return torch.isnan(top) | torch.isinf(top)


def argmax(logits: Tensor) -> Tensor:
    """[L] int64 ids of the largest logits [L, V], ties to the lower id, -1 for bad rows."""
    ids = torch.arange(logits.shape[1], device=logits.device)
    first = torch.where(logits == logits.amax(1, keepdim=True), ids, logits.shape[1]).amin(1)
    return torch.where(is_bad_row(logits), -1, first)


def best_score(x: Tensor, is_kept: Tensor, noise: Tensor) -> Tensor:
    """[L] int64 ids of the largest x + noise of the kept tokens, ties to the lower id, -1 where none is kept."""
    vocab_size = x.shape[1]
    score = torch.where(is_kept, x + noise, -torch.inf)
    ids = torch.arange(vocab_size, device=x.device)
    drawn = torch.where((score == score.amax(1, keepdim=True)) & is_kept, ids, vocab_size).amin(1)
    return torch.where(drawn == vocab_size, -1, drawn)


def sample_rows(logits: Tensor, rows: SamplingRows, ids: Tensor | None = None) -> Tensor:
    """[L, V] fp32 logits -> [L] int64 columns, -1 for a row that has no token to give."""
    is_bad = is_bad_row(logits)
    x, is_kept, temperature = truncation(torch.where(is_bad[:, None], 0.0, logits), rows)
    noise = gumbel_noise(rows.seeds, rows.positions, logits.shape[1] if ids is None else int(ids[-1]) + 1, 0)
    drawn = best_score(x, is_kept, noise if ids is None else noise[:, ids])
    token_ids = torch.where(temperature == 0, argmax(logits), drawn)
    return torch.where(is_bad | ~(temperature >= 0), -1, token_ids)


def truncate_(logits: Tensor, rows: SamplingRows) -> Tensor:
    """See kernels/sampling.py."""
    is_bad = is_bad_row(logits)
    x, is_kept, temperature = truncation(torch.where(is_bad[:, None], 0.0, logits), rows)
    is_first = torch.arange(logits.shape[1], device=logits.device) == argmax(logits)[:, None]
    is_greedy = (temperature == 0)[:, None]
    is_kept = torch.where(is_greedy, is_first, is_kept) & ~(is_bad | ~(temperature >= 0))[:, None]
    return logits.copy_(torch.where(is_kept, torch.where(is_greedy, 0.0, x), -torch.inf))


def gumbel_argmax(
    logits: Tensor, seeds: Tensor, positions: Tensor, purpose: int, streams: Tensor | None = None
) -> Tensor:
    """See kernels/sampling.py."""
    is_bad = is_bad_row(logits)
    x = torch.where(is_bad[:, None], 0.0, logits)
    x = x - x.amax(1, keepdim=True)
    drawn = best_score(x, x > -torch.inf, gumbel_noise(seeds, positions, logits.shape[1], purpose, streams))
    return torch.where(is_bad, -1, drawn)


def softmax_mass(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Row maximum [L] fp32 and the sum of trunc(exp(logit - maximum) * 2^40) [L] int64 (-1: no finite maximum)."""
    top = logits.amax(1)
    return top, torch.where(is_bad_row(logits), -1, mass_of(logits - top[:, None]).sum(1))


def top_tokens(logits: Tensor, n: int, token_ids: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Ids [L, n] of the n largest logits (ties to the lower id) and ranks [L] of token_ids from 1 in that order."""
    clean = torch.where(is_bad_row(logits)[:, None], 0.0, logits)
    order = torch.sort(clean, dim=1, descending=True, stable=True).indices
    if token_ids is None:
        return order[:, :n], None
    return order[:, :n], (order == token_ids[:, None]).int().argmax(1) + 1
