"""K2, a parameter that is honoured on one path only: every parameter, with every kind of draft, alone and in a mixed
batch, preempted or not, streamed or not, gives the same tokens, log-probabilities, text and finish reason."""

from __future__ import annotations

import pytest
from fakes import RandomProposer
from hypothesis import given, settings
from hypothesis import strategies as st
from properties.every_field import METHODS, VALUES, KnownProposer, answer, prompts, run, sampling_params, text_engine

from decodex.definition import options_of
from decodex.params import SamplingParams
from decodex.spec.costs import CostModel

# steps whose rows cost nothing, something, as much as steps without drafts
COSTS = [CostModel.profiled({1: 1.0, 64: last}) for last in (1.0, 8.0, 64.0)]
EXAMPLE = {
    "requests": st.lists(st.tuples(prompts(), sampling_params()), min_size=1, max_size=4),
    "proposer_seed": st.integers(0, 1000),
    "style": st.sampled_from(KnownProposer.STYLES),
    "method": st.sampled_from(METHODS),
    "costs": st.sampled_from(COSTS),
    "num_blocks": st.integers(14, 48),
    "max_num_seqs": st.integers(1, 6),
    "budget": st.sampled_from([3, 16, 64]),
}


def check(requests, proposer_seed, style, method, costs, num_blocks, max_num_seqs, budget):
    outputs = [run(text_engine(), [request])[0] for request in requests]
    expected = [answer(output) for output in outputs]
    known = [output.prompt_token_ids + choice.token_ids for output in outputs for choice in output.outputs]

    def proposers():
        return {
            "none": None,
            "chain": RandomProposer(proposer_seed, chain=True),
            "tree": RandomProposer(proposer_seed),
            style: KnownProposer(known, style),
        }

    options = {"num_blocks": num_blocks, "max_num_seqs": max_num_seqs, "max_num_batched_tokens": budget}
    for drafts, proposer in proposers().items():
        mixed = run(text_engine(proposer=proposer, **options), requests)
        for request, output, right in zip(requests, mixed, expected, strict=True):
            assert answer(output) == right, f"{drafts} drafts in a mixed batch: {request}"
    for proposed in (method, {**method, "control": False}):
        engine = text_engine(speculative_config=proposed, **options)
        engine.speculation.begin_control(costs)
        for request, output, right in zip(requests, run(engine, requests), expected, strict=True):
            assert answer(output) == right, f"{proposed} in a mixed batch: {request}"
            assert output.replayable
    for drafts, proposer in list(proposers().items())[1:]:
        [alone] = run(text_engine(proposer=proposer), requests[:1])
        assert answer(alone) == expected[0], f"{drafts} drafts alone: {requests[0]}"


@settings(max_examples=25)
@given(**EXAMPLE)
def test_every_path_gives_the_same(**example):
    check(**example)


@pytest.mark.slow
@settings(max_examples=600)
@given(**EXAMPLE)
def test_every_path_gives_the_same_in_a_sweep(**example):
    check(**example)


@pytest.mark.parametrize("name", VALUES)
def test_each_value_alone(name):
    """Every value of the table by itself, so that none depends on being drawn."""
    prompt = [1, 2, 3, 1, 2, 10, 9]
    base = {"seed": 11, "logprobs": 2, "max_tokens": 12}
    requests = [(prompt, SamplingParams(**{**base, name: value})) for value in VALUES[name]]
    outputs = [run(text_engine(), [request])[0] for request in requests]
    known = [prompt + choice.token_ids for output in outputs for choice in output.outputs]
    for proposer in (None, RandomProposer(1, chain=True), KnownProposer(known, "twins"), KnownProposer(known, "right")):
        mixed = run(text_engine(proposer=proposer, max_num_seqs=3), requests)
        assert [answer(output) for output in mixed] == [answer(output) for output in outputs]


def test_every_field_is_drawn():
    assert set(VALUES) == {field.name for field in options_of(SamplingParams)}, "a field that no property test knows"
