"""The cells of evals/distribution: parameters that are measured against their law, and laws that must be told apart."""

from __future__ import annotations

import itertools
from typing import Any

__all__ = ["CONTROLS", "REAL", "TOY"]

Values = dict[str, Any]
INF = float("inf")

TRUNCATIONS: list[Values] = [
    {"top_k": 3},
    {"top_p": 0.7},
    {"min_p": 0.15},
    {"top_n_sigma": 0.9},
    {"typical_p": 0.6},
    {"epsilon_cutoff": 0.08},
    {"eta_cutoff": 0.3},
    {"xtc_probability": 0.5, "xtc_threshold": 0.1},
]
OTHERS: list[Values] = [
    {},
    {"temperature": 0.3},
    {"temperature": 1.8},
    {"dynatemp_range": 0.6},
    {"dynatemp_range": 1.0, "dynatemp_exponent": 2.0, "temperature": 0.7},
    {"xtc_probability": 1.0, "xtc_threshold": 0.2},
    {"logit_bias": {1: 1.5, 2: -2.0, 4: -INF}},
    {"allowed_token_ids": [1, 2, 5, 7]},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"repetition_penalty": 1.5},
    {"repetition_penalty": 0.7, "penalty_last_n": 2},
    {"frequency_penalty": 0.9},
    {"presence_penalty": 1.2},
    {"frequency_penalty": -1.0, "presence_penalty": 0.5, "penalty_last_n": 2},
    {"dry_multiplier": 1.2, "dry_allowed_length": 1},
    {"dry_multiplier": 0.6, "dry_base": 3.0},
    {"ignore_eos": False},
    {"ignore_eos": False, "min_tokens": 2, "temperature": 1.5},
]
EVERYTHING: Values = {
    "temperature": 1.3,
    "dynatemp_range": 0.4,
    "logit_bias": {3: 0.8},
    "allowed_token_ids": [0, 1, 2, 3, 4, 5, 7],
    "no_repeat_ngram_size": 4,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.3,
    "presence_penalty": 0.2,
    "dry_multiplier": 0.3,
    "top_n_sigma": 2.2,
    "min_p": 0.03,
    "top_k": 6,
    "typical_p": 0.97,
    "epsilon_cutoff": 0.01,
    "eta_cutoff": 0.02,
    "top_p": 0.95,
    "xtc_probability": 0.3,
    "xtc_threshold": 0.2,
}
PAIRS: list[Values] = [{"temperature": 1.4, **a, **b} for a, b in itertools.combinations(TRUNCATIONS, 2)]
# parameters (and whether random trees are drafted) of whole outputs of the toy model
TOY: list[tuple[Values, bool]] = [
    *((values, False) for values in [*OTHERS, *TRUNCATIONS, *PAIRS, EVERYTHING]),
    *(
        (values, True)
        for values in [{}, {"xtc_probability": 0.5}, {"frequency_penalty": 0.9, "top_p": 0.7}, EVERYTHING]
    ),
]
# (what the engine is asked for, whose law it is tested against): the test must reject each
CONTROLS: list[tuple[Values, Values]] = [
    ({"temperature": 1.0}, {"temperature": 1.15}),
    ({"top_p": 0.7}, {"top_p": 0.6}),
    ({"min_p": 0.15}, {"min_p": 0.05}),
    ({"xtc_probability": 0.5}, {"xtc_probability": 0.4}),
    ({"frequency_penalty": 0.9}, {"frequency_penalty": 0.5}),
    ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5, "penalty_last_n": 4}),
    ({"dry_multiplier": 1.2, "dry_allowed_length": 1}, {"dry_multiplier": 1.2, "dry_allowed_length": 2}),
    ({"dynatemp_range": 0.6}, {}),
]
# first tokens of SmolLM2
REAL: list[Values] = [
    {},
    {"temperature": 0.5},
    {"temperature": 1.5, "top_k": 50},
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.02},
    {"top_n_sigma": 1.5},
    {"typical_p": 0.7},
    {"epsilon_cutoff": 0.004},
    {"eta_cutoff": 0.004},
    {"dynatemp_range": 0.5},
    {"xtc_probability": 0.5, "xtc_threshold": 0.03},
    {"repetition_penalty": 1.4, "logit_bias": {28: 2.0}},
    {"temperature": 1.2, "min_p": 0.005, "top_k": 60, "typical_p": 0.95, "top_p": 0.9},
]
