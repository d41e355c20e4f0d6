"""K2 under `rejection` and `block`: through the whole engine, outputs have the distribution of plain decoding.

A drafter whose logits are the target's, disturbed, draws its drafts at random; outputs of three tokens over many seeds
are counted beside those of an engine that drafts nothing.
"""

from __future__ import annotations

import functools
from collections import Counter

import pytest
import torch
from fakes import hash_logits, make_engine
from properties.every_field import AnyText, run
from toy_drafters import TappedModel, toy_drafter

from decodex.params import SamplingParams

V = 12
NUM_OUTPUTS = 1000
LEVEL = 1e-4  # each case; its seeds are fixed
PROMPT = [1, 2, 3, 1]
PARAMS = {
    "plain": {"temperature": 1.3, "top_p": 0.95},
    "penalised": {"temperature": 0.9, "frequency_penalty": 0.8, "repetition_penalty": 1.2, "min_p": 0.02},
    "regex": {"temperature": 1.5, "structured_outputs": {"regex": "(ab|c|b){1,5}"}},
}


@functools.cache
def known(prefix: tuple[int, ...]):
    return 0.6 * hash_logits(prefix, V)


def logits_of(prefix):
    return known(tuple(prefix)).copy()


def engine_of(**speculative):
    options = {}
    if speculative:
        options["speculative_config"] = {"method": "draft_model", "model": "toy", "control": False, **speculative}
        options["drafter"] = toy_drafter("draft_model", V, logits_of)
    model = TappedModel(V, logits_of=logits_of)
    return make_engine(
        model=model, tokenizer=AnyText(), max_model_len=32, max_num_seqs=64, num_blocks=1024, check_outputs=False,
        max_num_batched_tokens=2048, **options,
    )  # fmt: skip


def outputs_of(engine, params, first_seed: int) -> Counter[tuple[int, ...]]:
    seeds = range(first_seed, first_seed + NUM_OUTPUTS)
    outputs = run(engine, [(PROMPT, SamplingParams(max_tokens=3, seed=seed, **params)) for seed in seeds])
    assert all(output.error is None for output in outputs)
    return Counter(tuple(output.outputs[0].token_ids) for output in outputs)


@functools.cache
def plain_outputs(name: str) -> Counter[tuple[int, ...]]:
    return outputs_of(engine_of(), PARAMS[name], 10_000)


def p_value(one: Counter, other: Counter) -> float:
    """Of two samples of one size from one distribution: Pearson's chi-square over outcomes that come ten times."""
    common = [outcome for outcome in one.keys() | other.keys() if one[outcome] + other[outcome] >= 10]
    pairs = [(one[outcome], other[outcome]) for outcome in common]
    pairs.append((one.total() - sum(a for a, _ in pairs), other.total() - sum(b for _, b in pairs)))
    pairs = [(a, b) for a, b in pairs if a + b]
    statistic = sum((a - b) ** 2 / (a + b) for a, b in pairs)
    half = torch.tensor([(len(pairs) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize(
    "speculative",
    [
        {"verification": "rejection", "num_speculative_tokens": 3},
        {"verification": "rejection", "tree": [3, 2]},
        {"verification": "block", "num_speculative_tokens": 3},
    ],
    ids=["rejection", "rejection tree", "block"],
)
def test_outputs_have_the_distribution_of_plain_decoding(name, speculative):
    found = outputs_of(engine_of(**speculative), PARAMS[name], 1)
    assert p_value(found, plain_outputs(name)) > LEVEL


def test_another_distribution_is_seen():
    """The test has the power to see a temperature that is a little off."""
    other = outputs_of(engine_of(), {"temperature": 0.8, "top_p": 0.95}, 1)
    assert p_value(other, plain_outputs("plain")) < LEVEL
