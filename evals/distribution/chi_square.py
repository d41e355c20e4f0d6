"""Pearson's chi-square test of counts against a law, its power, and total variation. float64, no statistics library."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

import torch

__all__ = ["Fit", "detectable", "fit", "total_variation"]

LEAST_EXPECTED = 5.0  # counts that a bin expects at least


@dataclass(frozen=True)
class Fit:
    """What one test found."""

    num_samples: int
    num_bins: int
    statistic: float
    p_value: float  # 0 where something came that can't come
    total_variation: float  # over the bins
    total_variation_by_chance: float  # its mean if the law is right
    impossible: int  # samples with an outcome that can't come


def fit(counts: Mapping[Hashable, int], law: Mapping[Hashable, float], possible: frozenset[Hashable]) -> Fit:
    """Test `counts` of outcomes against their probabilities; outcomes of `possible` may come though `law` has none."""
    total = sum(counts.values())
    impossible = sum(
        count for outcome, count in counts.items() if law.get(outcome, 0.0) == 0.0 and outcome not in possible
    )
    bins = _bins(law, total)
    observed = [sum(counts.get(outcome, 0) for outcome in outcomes) for outcomes in bins]
    shares = [math.fsum(law[outcome] for outcome in outcomes) for outcomes in bins]
    statistic = sum((seen - total * p) ** 2 / (total * p) for seen, p in zip(observed, shares, strict=True))
    degrees = len(bins) - 1
    p_value = chi_square_tail(statistic, degrees) if degrees else 1.0
    return Fit(
        num_samples=total,
        num_bins=len(bins),
        statistic=statistic,
        p_value=0.0 if impossible else p_value,
        total_variation=0.5 * sum(abs(seen / total - p) for seen, p in zip(observed, shares, strict=True)),
        total_variation_by_chance=0.5 * sum(math.sqrt(2 * p * (1 - p) / (math.pi * total)) for p in shares),
        impossible=impossible,
    )


def _bins(law: Mapping[Hashable, float], total: int) -> list[list[Hashable]]:
    """Outcomes by falling probability, as many in a bin as make it expect LEAST_EXPECTED counts."""
    bins: list[list[Hashable]] = []
    mass = LEAST_EXPECTED
    for outcome, p in sorted(law.items(), key=lambda item: -item[1]):
        if p == 0.0:
            continue
        if mass >= LEAST_EXPECTED:
            bins.append([])
            mass = 0.0
        bins[-1].append(outcome)
        mass += total * p
    if mass < LEAST_EXPECTED and len(bins) > 1:
        bins[-2] += bins.pop()
    return bins


def chi_square_tail(statistic: float, degrees: int) -> float:
    """P(chi-square with `degrees` > statistic)."""
    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def noncentral_tail(statistic: float, degrees: int, noncentrality: float) -> float:
    """The same with a non-centrality: a Poisson mixture of chi-squares with 2 j more degrees."""
    mean = noncentrality / 2
    j = torch.arange(int(mean + 12 * math.sqrt(mean + 1) + 30), dtype=torch.float64)
    log_weights = j * math.log(mean) - mean - torch.lgamma(j + 1) if mean > 0 else torch.where(j == 0, 0.0, -math.inf)
    tails = torch.special.gammaincc(degrees / 2 + j, torch.full_like(j, statistic / 2))
    return float((log_weights.exp() * tails).sum())


def _bisect(is_low: Callable[[float], bool], low: float, high: float) -> float:
    for _ in range(80):
        middle = (low + high) / 2
        if is_low(middle):
            low = middle
        else:
            high = middle
    return (low + high) / 2


def detectable(num_samples: int, num_bins: int, level: float, power: float = 0.9) -> float:
    """A total variation (over the bins) such that every deviation of that size is rejected with at least this power.

    A deviation d of the probabilities p has non-centrality N sum(d^2 / p), which for a given total variation is least
    where d / p has one value above and one below: N tv^2 / (P (1 - P)) >= 4 N tv^2, P the mass of what is above.
    """
    if num_bins < 2:
        return 1.0
    degrees = num_bins - 1
    high = 2.0 * degrees + 500.0
    critical = _bisect(lambda x: chi_square_tail(x, degrees) > level, 0.0, high)
    noncentrality = _bisect(lambda x: noncentral_tail(critical, degrees, x) < power, 0.0, high)
    return min(1.0, math.sqrt(noncentrality / (4 * num_samples)))


def total_variation(one: Mapping[Hashable, float], other: Mapping[Hashable, float]) -> float:
    """Half the sum of the differences of two laws."""
    return 0.5 * math.fsum(abs(one.get(outcome, 0.0) - other.get(outcome, 0.0)) for outcome in {*one, *other})
