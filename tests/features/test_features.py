"""Each parameter against the oracle: alone and in a mixed batch, with and without drafts, preempted, slots reused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fakes import FakeModel, RandomProposer, TextTokenizer, hash_logits, make_engine
from feature_oracle import expected

from decodex.params import SamplingParams
from decodex.processors import FunctionProcessor

TEXTS = ["</s>", "a", "b", "ab", "ba", "c", "bc", "cab", " ", "\n", "<think>", "</think>"]
THINK = 10
PROMPT = [1, 2, 3, 1, 2, 9, 3, 1]


class Flatten(FunctionProcessor):
    """A pure processor that reads all tokens: logits shrink with the number of tokens `a`."""

    def __init__(self) -> None:
        super().__init__(self.change, pure=True)

    @staticmethod
    def change(token_ids, logits):
        return logits / (1 + token_ids.count(1))

    @staticmethod
    def oracle(tokens, logits):
        return logits / (1 + tokens.count(1))


CASES = {
    "plain": {},
    "greedy": {"temperature": 0.0},
    "bias": {"logit_bias": {3: 4.0, 5: -100.0, 7: float("-inf"), 1: 1.5}},
    "allowed": {"allowed_token_ids": [1, 2, 5, 8, 5]},
    "bad_words": {"bad_words": ["abc", "bb", "ca"]},
    "bad_words_special": {"bad_words": ["a</", "b"], "skip_special_tokens": False},
    "ngram_1": {"no_repeat_ngram_size": 1, "max_tokens": 4},
    "ngram_2": {"no_repeat_ngram_size": 2},
    "ngram_3": {"no_repeat_ngram_size": 3},
    "min_tokens": {"min_tokens": 12, "ignore_eos": False, "stop_token_ids": [3, 4]},
    "thinking": {"max_thinking_tokens": 3},
    "thinking_none": {"max_thinking_tokens": 0},
    "repetition": {"repetition_penalty": 1.7},
    "repetition_reward": {"repetition_penalty": 0.6},
    "frequency": {"frequency_penalty": 0.7},
    "presence": {"presence_penalty": 1.3},
    "all_penalties": {"repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": -0.4},
    "window": {"repetition_penalty": 1.5, "frequency_penalty": 0.8, "presence_penalty": 0.3, "penalty_last_n": 6},
    "window_1": {"frequency_penalty": 2.0, "penalty_last_n": 1},
    "dry": {"dry_multiplier": 1.1, "dry_allowed_length": 1, "temperature": 0.7},
    "dry_no_breakers": {"dry_multiplier": 2.0, "dry_base": 1.2, "dry_sequence_breakers": []},
    "dry_own_breakers": {"dry_multiplier": 2.0, "dry_allowed_length": 1, "dry_sequence_breakers": ["c", " "]},
    "typical_p": {"typical_p": 0.4},
    "top_n_sigma": {"top_n_sigma": 0.8},
    "epsilon": {"epsilon_cutoff": 0.09},
    "eta": {"eta_cutoff": 0.2},
    "xtc": {"xtc_probability": 0.6, "xtc_threshold": 0.12},
    "dynatemp": {"dynatemp_range": 0.6, "dynatemp_exponent": 1.5, "temperature": 0.8},
    "truncated": {"top_k": 6, "top_p": 0.8, "min_p": 0.05, "temperature": 1.3},
    "pure_processor": {"logits_processors": [Flatten()]},
    "loop": {"repetition_stop": 2, "repetition_stop_span": 3, "repetition_stop_period": 3},
    "everything": {
        "logit_bias": {3: 1.0},
        "allowed_token_ids": list(range(1, 12)),
        "bad_words": ["abca"],
        "no_repeat_ngram_size": 5,
        "max_thinking_tokens": 4,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.1,
        "dry_multiplier": 0.8,
        "dynatemp_range": 0.3,
        "top_n_sigma": 2.5,
        "min_p": 0.02,
        "top_k": 9,
        "typical_p": 0.98,
        "epsilon_cutoff": 0.001,
        "eta_cutoff": 0.001,
        "top_p": 0.97,
        "xtc_probability": 0.3,
        "logits_processors": [Flatten()],
    },
}


def logits_of(prefix):
    """Depends on the last token above all, so that texts repeat themselves, and a little on every other."""
    return hash_logits(prefix[-1:], len(TEXTS)) + 0.4 * hash_logits(prefix, len(TEXTS))


def oracle_of(prompt, params, choice=0):
    return expected(prompt, params, TextTokenizer(TEXTS), choice, logits_of)


def params_of(name: str, **more) -> SamplingParams:
    common = {"seed": 77, "max_tokens": 24, "ignore_eos": True, "temperature": 1.2}
    return SamplingParams(**{**common, **CASES[name], **more})


def engine_of(proposer=None, **options):
    model = FakeModel(len(TEXTS), logits_of=logits_of)
    return make_engine(model=model, tokenizer=TextTokenizer(TEXTS), proposer=proposer, **options)


def proposers():
    chain, tree = (RandomProposer(5 + i, len(TEXTS), chain=i == 0, logits_of=logits_of) for i in range(2))
    return {"none": None, "chain": chain, "tree": tree}


def run(engine, requests):
    admitted = [engine.admission.admit(prompt, params) for prompt, params in requests]
    for request in admitted:
        engine.add(request)
    while engine.has_work:
        engine.step()
    return [engine.output_of(request) for request in admitted]


def check(output, prompt, params):
    for choice in output.outputs:
        oracle = oracle_of(prompt, params, choice.index)
        assert choice.token_ids == oracle.token_ids
        assert choice.finish_reason == oracle.finish_reason


@pytest.mark.parametrize("drafts", ["none", "chain", "tree"])
@pytest.mark.parametrize("name", CASES)
def test_alone(name, drafts):
    prompt = [*PROMPT, THINK] if "thinking" in name else PROMPT
    params = params_of(name)
    [output] = run(engine_of(proposers()[drafts], max_num_batched_tokens=16), [(prompt, params)])
    check(output, prompt, params)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("plain", "min_tokens", "loop")])
def test_each_case_changes_something(name):
    """A case that equals plain decoding would test nothing."""
    prompt = [*PROMPT, THINK] if "thinking" in name else PROMPT
    params, plain = params_of(name), params_of("plain")
    assert oracle_of(prompt, params).token_ids != oracle_of(prompt, plain).token_ids


@pytest.mark.parametrize("drafts", ["none", "chain", "tree"])
def test_mixed_batch_with_preemption_and_reused_slots(drafts):
    """Every request has parameters of its own and gets what it gets alone."""
    requests = [
        (PROMPT[i % 3 :] + ([THINK] if i % 2 else []), params_of(name, seed=i, n=1 + i % 2))
        for i, name in enumerate(CASES)
    ]
    engine = engine_of(proposers()[drafts], num_blocks=26, max_num_seqs=5, max_num_batched_tokens=24)
    outputs = run(engine, requests)
    assert sum(output.metrics.num_preemptions for output in outputs) > 10
    for output, (prompt, params) in zip(outputs, requests, strict=True):
        check(output, prompt, params)
    assert engine.scheduler.pool.num_free == engine.config.num_blocks


@pytest.mark.parametrize("mode", ["raw", "processed"])
@pytest.mark.parametrize("drafts", ["none", "chain", "tree"])
@pytest.mark.parametrize("count", [-1, 0, 3])
def test_logprobs(mode, drafts, count):
    params = params_of("everything", logprobs=count, logprobs_mode=mode, logprob_token_ids=[7, 2])
    [output] = run(engine_of(proposers()[drafts]), [(PROMPT, params)])
    oracle = oracle_of(PROMPT, params)
    choice = output.outputs[0]
    assert choice.token_ids == oracle.token_ids
    for token, entries, row in zip(choice.token_ids, choice.logprobs, getattr(oracle, mode), strict=True):
        order = sorted(range(len(TEXTS)), key=lambda t: (-row[t].item(), t))
        assert set(entries) == {*order[: len(TEXTS) if count < 0 else count], token, 7, 2}
        for key, value in entries.items():
            assert value.logprob == pytest.approx(row[key].item(), abs=1e-5)
            assert value.rank == 1 + order.index(key)
            assert value.decoded_token == TEXTS[key]


@pytest.mark.parametrize("budget", [3, 64])
@pytest.mark.parametrize("count", [-1, 0, 2])
def test_prompt_logprobs(budget, count):
    """In chunks, past the prefix cache, and once for all choices; masks and penalties don't touch them."""
    prompt = PROMPT * 4
    engine = engine_of(max_num_batched_tokens=budget)
    params = params_of("everything", prompt_logprobs=count, n=2, max_tokens=4)
    for _ in range(2):  # the second time everything is in the prefix cache
        [output] = run(engine, [(prompt, params)])
        check(output, prompt, params)
        assert output.prompt_logprobs[0] is None
        assert len(output.prompt_logprobs) == len(prompt)
        for place in range(1, len(prompt)):
            row = torch.log_softmax(torch.from_numpy(logits_of(prompt[:place])).double(), 0)
            entries = output.prompt_logprobs[place]
            assert len(entries) >= (len(TEXTS) if count < 0 else max(count, 1))
            assert prompt[place] in entries
            for key, value in entries.items():
                assert value.logprob == pytest.approx(row[key].item(), abs=1e-5)


def test_prompt_logprobs_survive_preemption():
    engine = engine_of(num_blocks=12, max_num_batched_tokens=3)
    low = engine.admission.admit([1, 2] * 12, params_of("plain", prompt_logprobs=0, max_tokens=3), priority=5)
    engine.add(low)
    for _ in range(4):
        engine.step()
    engine.add(engine.admission.admit([2] * 40, params_of("plain", max_tokens=3)))
    while engine.has_work:
        engine.step()
    assert low.metrics.num_preemptions > 0
    assert len(engine.output_of(low).prompt_logprobs) == 24
    [whole] = run(engine_of(), [([1, 2] * 12, low.params)])
    assert whole.prompt_logprobs == engine.output_of(low).prompt_logprobs


def test_wide_model_rows_are_masked_too():
    """The model's logits are wider than the tokenizer's vocabulary: every feature works on the slice."""

    def wide(prefix):
        return np.concatenate([logits_of(prefix), np.full(8, 50, dtype=np.float32)])

    params = params_of("everything")
    engine = make_engine(model=FakeModel(20, logits_of=wide), tokenizer=TextTokenizer(TEXTS))
    [output] = run(engine, [(PROMPT, params)])
    check(output, PROMPT, params)
