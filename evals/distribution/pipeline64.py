"""The row pipeline's law in float64, from the formulas of docs/parameters.md: one row, plain loops, nothing of decodex.

A kept token is decided by comparisons that single precision may see differently within its rounding; `margin` moves
every threshold by that share (or each filter's own, where a mapping names them), so that a caller can tell such a token
(kept under one margin, not under another) from a wrong one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["FILTERS", "KNOWN", "Row", "branches", "law"]

Array = np.ndarray[Any, np.dtype[np.float64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

FILTERS = ("top_n_sigma", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_p", "xtc")  # those with a margin

MASKS = ("logit_bias", "allowed_token_ids", "no_repeat_ngram_size", "min_tokens")
PENALTIES = (
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "penalty_last_n",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_sequence_breakers",
)
TRUNCATIONS = (
    "temperature",
    "dynatemp_range",
    "dynatemp_exponent",
    "top_n_sigma",
    "min_p",
    "top_k",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "top_p",
    "xtc_probability",
    "xtc_threshold",
)
KNOWN = frozenset((*MASKS, *PENALTIES, *TRUNCATIONS, "ignore_eos"))  # parameters that `law` follows


@dataclass(frozen=True)
class Row:
    """What a row depends on beside its logits and parameters."""

    prompt: Sequence[int]
    output: Sequence[int] = ()
    eos: frozenset[int] = frozenset()
    exempt: frozenset[int] = frozenset()  # end of sequence and newline, for XTC
    breakers: frozenset[int] = frozenset()  # tokens that contain a DRY breaker


def law(logits: Array, params: Mapping[str, Any], row: Row, margin: float = 0.0) -> Array:
    """Probabilities [V] of the row's token, for logits [V]. KeyError for a parameter that is not in KNOWN.

    Mixed over XTC's coin. The sum is 1; a token that is not kept has exactly 0.
    """
    total = np.zeros(len(logits))
    for share, logprobs in branches(logits, params, row, margin):
        total += share * np.exp(logprobs)
    return total


def branches(
    logits: Array, params: Mapping[str, Any], row: Row, margin: float | Mapping[str, float] = 0.0
) -> list[tuple[float, Array]]:
    """(probability, log-probabilities [V] of the kept tokens, -inf for others) for each side of XTC's coin."""
    unknown = set(params) - KNOWN
    if unknown:
        raise KeyError(f"no formula here for {sorted(unknown)}")
    x = np.array(logits, dtype=np.float64)
    _mask(x, params, row)
    _penalize(x, params, row)
    temperature = params.get("temperature", 1.0)
    if temperature > 0.0:
        temperature = _dynamic(x, temperature, params)
    if temperature == 0.0:
        greedy = np.full(len(x), -np.inf)
        greedy[int(np.argmax(x))] = 0.0
        return [(1.0, greedy)]
    scaled = (x - x.max()) / temperature
    margins = margin if isinstance(margin, Mapping) else dict.fromkeys(FILTERS, margin)
    kept = _truncate(x, scaled, params, margins)
    plain = _log_softmax(scaled, kept)
    probability = params.get("xtc_probability") or 0.0
    if probability == 0.0:
        return [(1.0, plain)]
    less = _exclude(scaled, kept, params.get("xtc_threshold", 0.1) * (1 - margins["xtc"]), row.exempt)
    return [(1.0 - probability, plain), (probability, _log_softmax(scaled, less))]


def _log_softmax(scaled: Array, kept: Mask) -> Array:
    values = np.where(kept, scaled, -np.inf)
    top = values.max()
    result: Array = values - (top + math.log(np.exp(values - top).sum()))
    return result


def _mask(x: Array, params: Mapping[str, Any], row: Row) -> None:
    """Step 2."""
    for token, bias in (params.get("logit_bias") or {}).items():
        x[token] += bias
    allowed = params.get("allowed_token_ids")
    if allowed is not None:
        x[~np.isin(np.arange(len(x)), list(allowed))] = -np.inf
    size = params.get("no_repeat_ngram_size") or 0
    tokens = [*row.prompt, *row.output]
    if size:
        seen = {tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)}
        tail = tuple(tokens[len(tokens) - size + 1 :])
        for gram in seen:
            if gram[:-1] == tail:
                x[gram[-1]] = -np.inf
    if len(row.output) < params.get("min_tokens", 0) and not params.get("ignore_eos", False):
        x[sorted(row.eos)] = -np.inf


def _penalize(x: Array, params: Mapping[str, Any], row: Row) -> None:
    """Step 3."""
    tokens = [*row.prompt, *row.output]
    window = params.get("penalty_last_n") or -1
    first = 0 if window < 0 else max(0, len(tokens) - window)
    repetition = params.get("repetition_penalty") or 1.0
    for token in set(tokens[first:]):
        x[token] = x[token] / repetition if x[token] > 0 else x[token] * repetition
    output = tokens[max(first, len(row.prompt)) :]
    for token in set(output):
        x[token] -= (params.get("frequency_penalty") or 0.0) * output.count(token)
        x[token] -= params.get("presence_penalty") or 0.0
    multiplier = params.get("dry_multiplier") or 0.0
    if multiplier:
        base, free = params.get("dry_base", 1.75), params.get("dry_allowed_length", 2)
        for token, length in _repeated(tokens, row.breakers).items():
            if length >= free:
                x[token] -= multiplier * base ** (length - free)


def _repeated(tokens: Sequence[int], breakers: frozenset[int]) -> dict[int, int]:
    """For each token that followed an end of the text before: the longest such end."""
    found: dict[int, int] = {}
    for place in range(len(tokens) - 1):
        length = 0
        while (
            length <= place
            and tokens[place - length] == tokens[len(tokens) - 1 - length]
            and tokens[place - length] not in breakers
        ):
            length += 1
        follower = tokens[place + 1]
        if length and follower not in breakers:
            found[follower] = max(found.get(follower, 0), length)
    return found


def _dynamic(x: Array, temperature: float, params: Mapping[str, Any]) -> float:
    """Step 6: the temperature, by the entropy of the softmax over the finite logits."""
    span = params.get("dynatemp_range") or 0.0
    finite = x[x > -np.inf]
    if span == 0.0:
        return temperature
    if len(finite) < 2:
        return max(0.0, temperature - span)
    p = np.exp(finite - finite.max())
    p /= p.sum()
    share = _entropy(p) / math.log(len(finite))
    low, high = max(0.0, temperature - span), temperature + span
    return float(low + (high - low) * share ** params.get("dynatemp_exponent", 1.0))


def _entropy(p: Array) -> float:
    positive = p[p > 0]
    return float(-(positive * np.log(positive)).sum())


def _p(scaled: Array, kept: Mask) -> Array:
    weights = np.where(kept, np.exp(scaled), 0.0)
    result: Array = weights / weights.sum()
    return result


def _prefix(order: Sequence[int], p: Array, share: float, kept: Mask) -> Mask:
    """The shortest prefix of `order` that has this mass."""
    if share >= 1.0:
        return kept
    chosen, mass = np.zeros_like(kept), 0.0
    for token in order:
        chosen[token] = True
        mass += p[token]
        if mass >= share:
            break
    return chosen & kept


def _truncate(x: Array, scaled: Array, params: Mapping[str, Any], margin: Mapping[str, float]) -> Mask:
    """Step 7, without XTC: which tokens are kept."""
    kept: Mask = x > -np.inf
    ids = np.arange(len(x))
    sigmas = params.get("top_n_sigma") or 0.0
    if sigmas > 0:
        kept &= x >= x.max() - sigmas * x[kept].std() * (1 + margin["top_n_sigma"]) - abs(margin["top_n_sigma"])
    min_p = params.get("min_p") or 0.0
    if min_p > 0:
        kept &= scaled >= min(0.0, math.log(min_p) - margin["min_p"])
    top_k = params.get("top_k") or 0
    order = [int(t) for t in np.lexsort((ids, -x)) if kept[t]]
    if top_k > 0:
        kept = np.isin(ids, order[:top_k])
    typical = params.get("typical_p") or 1.0
    if typical < 1.0:
        p = _p(scaled, kept)
        with np.errstate(divide="ignore"):
            distance = np.abs(-_log_softmax(scaled, kept) - _entropy(p))
        nearest = [int(t) for t in np.lexsort((ids, distance)) if kept[t]]
        kept = _prefix(nearest, p, typical * (1 + margin["typical_p"]), kept)
    best = next(token for token in order if kept[token])
    epsilon = params.get("epsilon_cutoff") or 0.0
    if epsilon > 0:
        kept = kept & (_p(scaled, kept) >= epsilon * (1 - margin["epsilon_cutoff"]))
        kept[best] = True
    eta = params.get("eta_cutoff") or 0.0
    if eta > 0:
        p = _p(scaled, kept)
        kept = kept & (p >= min(eta, math.sqrt(eta) * math.exp(-_entropy(p))) * (1 - margin["eta_cutoff"]))
        kept[best] = True
    top_p = params.get("top_p") or 1.0
    return _prefix([t for t in order if kept[t]], _p(scaled, kept), top_p * (1 + margin["top_p"]), kept)


def _exclude(scaled: Array, kept: Mask, threshold: float, exempt: frozenset[int]) -> Mask:
    """XTC with its coin up: of the likely tokens only the least likely stays."""
    p = _p(scaled, kept)
    likely = [t for t in np.lexsort((np.arange(len(p)), -scaled)) if kept[t] and p[t] >= threshold and t not in exempt]
    kept = kept.copy()
    kept[[int(t) for t in likely[:-1]]] = False
    return kept
