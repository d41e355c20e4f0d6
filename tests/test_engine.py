"""The engine on the fake model: what a batch gives each request is what a plain loop over its prefix gives."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from fakes import EOS, VOCAB, FakeModel, FakeTokenizer, RandomProposer, expected_tokens, hash_logits, make_engine

from decodex import LLM, QueueFullError, RequestError, SamplingParams
from decodex.errors import EngineError
from decodex.kernels.rng import derive_seed

PROMPT = [1, 2, 3, 4, 5]


def run(engine, *requests):
    """Add everything, step to the end, return the outputs."""
    admitted = [engine.admission.admit(prompt, params) for prompt, params in requests]
    for request in admitted:
        engine.add(request)
    while engine.has_work:
        engine.step()
    return [engine.output_of(request) for request in admitted]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("budget", [1, 2, 64])
def test_tokens_equal_a_plain_loop(temperature, budget):
    params = [SamplingParams(temperature=temperature, seed=s, max_tokens=20) for s in range(6)]
    prompts = [[1 + s % 3] * (s + 1) for s in range(6)]
    engine = make_engine(max_num_batched_tokens=budget)
    outputs = run(engine, *zip(prompts, params, strict=True))
    for prompt, param, output in zip(prompts, params, outputs, strict=True):
        assert output.outputs[0].token_ids == expected_tokens(prompt, param)


@pytest.mark.parametrize("chain", [True, False])
def test_drafts_change_no_token_and_save_steps(chain):
    params = SamplingParams(temperature=0.0, seed=7, max_tokens=60, ignore_eos=True)
    plain = make_engine()
    drafted = make_engine(proposer=RandomProposer(3, chain=chain))
    [expected], [output] = run(plain, (PROMPT, params)), run(drafted, (PROMPT, params))
    assert output.outputs[0].token_ids == expected.outputs[0].token_ids == expected_tokens(PROMPT, params)
    assert drafted.model.num_forwards < 0.7 * plain.model.num_forwards


def test_logprobs_are_of_the_raw_row_under_drafts_too():
    params = SamplingParams(temperature=0.7, top_k=3, seed=5, max_tokens=20, logprobs=4, ignore_eos=True)
    for proposer in (None, RandomProposer(1)):
        [output] = run(make_engine(proposer=proposer), (PROMPT, params))
        choice = output.outputs[0]
        prefix, total = list(PROMPT), 0.0
        for token, entry in zip(choice.token_ids, choice.logprobs, strict=True):
            row = torch.log_softmax(torch.from_numpy(hash_logits(prefix, VOCAB)).double(), 0).numpy()
            order = np.lexsort((np.arange(VOCAB), -row))
            assert set(entry) == {*order[:4].tolist(), token}
            for key, value in entry.items():
                assert value.logprob == pytest.approx(row[key], abs=1e-5)
                assert value.rank == 1 + order.tolist().index(key)
                assert value.decoded_token == chr(97 + key)
            total += row[token]
            prefix.append(token)
        assert choice.cumulative_logprob == pytest.approx(total, abs=1e-4)


def test_choices_have_their_own_seeds_which_reproduce_them():
    params = SamplingParams(n=4, temperature=1.5, seed=11, max_tokens=12)
    engine = make_engine()
    [output] = run(engine, (PROMPT, params))
    assert [c.seed for c in output.outputs] == [derive_seed(11, k) for k in range(4)]
    assert len({tuple(c.token_ids) for c in output.outputs}) > 1
    for choice in output.outputs:
        alone = SamplingParams(temperature=1.5, seed=choice.seed, max_tokens=12)
        [again] = run(make_engine(), (PROMPT, alone))
        assert again.outputs[0].token_ids == choice.token_ids


def test_choices_share_their_prompt():
    prompt = [1 + i % 9 for i in range(40)]
    engine = make_engine(enable_prefix_caching=False)
    run(engine, (prompt, SamplingParams(n=5, seed=1, max_tokens=2, ignore_eos=True)))
    assert engine.model.num_tokens == 40 + 4 + 5, "each further choice computes the last prompt token only"


def test_seed_is_drawn_and_returned_when_absent():
    engine = make_engine()
    params = SamplingParams(temperature=1.5, max_tokens=12)
    first, second = run(engine, (PROMPT, params), (PROMPT, params))
    assert first.outputs[0].seed != second.outputs[0].seed
    assert first.outputs[0].seed < 2**53
    replay = SamplingParams(temperature=1.5, max_tokens=12, seed=first.outputs[0].seed)
    assert run(make_engine(), (PROMPT, replay))[0].outputs[0].token_ids == first.outputs[0].token_ids
    fixed = run(make_engine(seed=9), (PROMPT, params))[0].outputs[0]
    assert fixed.seed == 9


def test_prefix_cache_is_used_and_salted():
    prompt = [1 + i % 9 for i in range(20)]
    engine = make_engine()
    params = SamplingParams(temperature=0, max_tokens=3)
    assert run(engine, (prompt, params))[0].metrics.num_cached_tokens == 0
    before = engine.model.num_tokens
    assert run(engine, (prompt, params))[0].metrics.num_cached_tokens == 16
    assert engine.model.num_tokens - before == 4 + 2
    salted = engine.admission.admit(prompt, params, cache_salt="other")
    engine.add(salted)
    engine.step()
    assert salted.metrics.num_cached_tokens == 0


def test_preemption_and_priority():
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=30, ignore_eos=True)
    engine = make_engine(num_blocks=12)
    low = engine.admission.admit([1] * 10, params, priority=5)
    engine.add(low)
    for _ in range(12):
        engine.step()
    high = engine.admission.admit([2] * 18, params, priority=0)
    engine.add(high)
    while not high.is_finished:
        engine.step()
    assert not low.is_finished
    assert low.metrics.num_preemptions > 0
    while engine.has_work:
        engine.step()
    for request, prompt in ((low, [1] * 10), (high, [2] * 18)):
        assert engine.output_of(request).outputs[0].token_ids == expected_tokens(prompt, params)


def test_abort_at_every_step():
    for when in range(12):
        engine = make_engine(max_num_batched_tokens=3)
        params = SamplingParams(n=2, temperature=0, seed=1, max_tokens=8, ignore_eos=True)
        request = engine.admission.admit([1] * 9, params)
        other = engine.admission.admit([2, 2], params)
        engine.add(request)
        engine.add(other)
        for _ in range(when):
            if engine.has_work:
                engine.step()
        engine.abort(request.request_id)
        while engine.has_work:
            engine.step()
        assert {c.finish_reason for c in engine.output_of(request).outputs} <= {"abort", "length"}
        assert engine.output_of(other).outputs[0].token_ids == expected_tokens([2, 2], params)
        assert engine.scheduler.pool.num_free == engine.config.num_blocks
    assert engine.abort("nobody") is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_broken_row_is_its_own_requests_error(bad):
    """NaN logits end the request they belong to; a neighbour gets what it gets alone."""

    def logits_of(prefix):
        logits = hash_logits(prefix, VOCAB)
        if prefix[0] == 9 and len(prefix) == 4:
            logits[:] = bad
        return logits

    params = SamplingParams(temperature=0.8, seed=1, max_tokens=8, ignore_eos=True)
    engine = make_engine(model=FakeModel(logits_of=logits_of))
    broken, well = run(engine, ([9, 1], params), ([3, 1], params))
    assert broken.outputs[0].finish_reason == "error"
    assert isinstance(broken.error, EngineError)
    assert "position 4" in str(broken.error)
    assert len(broken.outputs[0].token_ids) == 2
    assert well.error is None
    assert well.outputs[0].token_ids == expected_tokens([3, 1], params)
    assert engine.scheduler.pool.num_free == engine.config.num_blocks


def test_vocabulary_beyond_the_tokenizer_is_never_chosen():
    def logits_of(prefix):
        logits = np.full(20, 50.0, dtype=np.float32)
        logits[:VOCAB] = hash_logits(prefix, VOCAB)
        return logits

    params = SamplingParams(temperature=1.0, seed=2, max_tokens=20, ignore_eos=True)
    [output] = run(make_engine(model=FakeModel(20, logits_of=logits_of)), (PROMPT, params))
    assert output.outputs[0].token_ids == expected_tokens(PROMPT, params)


def test_min_tokens_holds_back_the_end():
    params = SamplingParams(temperature=2.0, seed=4, max_tokens=30, min_tokens=25, stop_token_ids=[3, 4])
    [output] = run(make_engine(), (PROMPT, params))
    assert output.outputs[0].token_ids == expected_tokens(PROMPT, params)
    assert not {EOS, 3, 4} & set(output.outputs[0].token_ids[:25])


@pytest.mark.parametrize(
    ("prompt", "params", "field"),
    [
        ("", {}, "prompt"),
        ([], {}, "prompt"),
        ([1, 12], {}, "prompt[1]"),
        ([1, -1], {}, "prompt[1]"),
        ([1, 1.5], {}, "prompt[1]"),
        (7, {}, "prompt"),
        (b"ab", {}, "prompt"),
        ("a\ud800", {}, "prompt"),
        ({"promt": "a"}, {}, "prompt"),
        ({"prompt": [1]}, {}, "prompt"),
        ([1] * 512, {}, "prompt"),
        ([1] * 500, {"max_tokens": 13}, "max_tokens"),
        ([1], {"stop_token_ids": [12]}, "stop_token_ids[0]"),
        ([1] * 500, {"max_tokens": None, "min_tokens": 13}, "min_tokens"),
    ],
)
def test_refused_at_admission_by_field(prompt, params, field):
    engine = make_engine(num_blocks=200)
    with pytest.raises(RequestError) as caught:
        engine.admission.admit(prompt, SamplingParams(**params))
    assert caught.value.field == field


def test_a_request_that_can_never_fit_the_pool_is_refused():
    engine = make_engine(num_blocks=4)
    with pytest.raises(RequestError, match=r"max_tokens: got 12, expected at most 11.*KV pool"):
        engine.admission.admit([1] * 5, SamplingParams(max_tokens=12))
    output = run(engine, ([1] * 5, SamplingParams(max_tokens=None, ignore_eos=True)))[0]
    assert len(output.outputs[0].token_ids) == 11
    assert output.outputs[0].finish_reason == "length"


def test_queue_is_bounded_and_ids_are_unique():
    engine = make_engine(max_queued_requests=2)
    for name in ("a", "b"):
        engine.add(engine.admission.admit([1], SamplingParams(ignore_eos=True), request_id=name))
    with pytest.raises(QueueFullError, match="max_queued_requests"):
        engine.add(engine.admission.admit([1], SamplingParams(ignore_eos=True), request_id="c"))
    engine.step()
    with pytest.raises(RequestError, match="request_id"):
        engine.add(engine.admission.admit([1], SamplingParams(ignore_eos=True), request_id="a"))


def test_two_steps_of_equal_requests_have_equal_fingerprints_and_say_replayable():
    [output] = run(make_engine(), (PROMPT, SamplingParams()))
    assert output.replayable
    assert output.system_fingerprint == run(make_engine(), (PROMPT, SamplingParams()))[0].system_fingerprint


def test_llm_generate_keeps_order_and_isolates_refusals():
    llm = LLM.from_engine(make_engine(max_queued_requests=1))
    params = [SamplingParams(temperature=0, max_tokens=k + 1, ignore_eos=True) for k in range(5)]
    prompts = ["b", [2, 3], "", {"prompt_token_ids": [4]}, [99]]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    results = [o.error.field if o.error else len(o.outputs[0].token_ids) for o in outputs]
    assert results == [1, 2, "prompt", 4, "prompt[0]"]
    with pytest.raises(RequestError, match="prompt"):
        llm.generate("", use_tqdm=False)
    with pytest.raises(RequestError, match="one for each of the 2"):
        llm.generate(["b", "c"], params, use_tqdm=False)
    assert llm.generate([], use_tqdm=False) == []
    two = SamplingParams(temperature=0, seed=1, max_tokens=2, ignore_eos=True)
    [single] = llm.generate([1, 2, 3], two, use_tqdm=False)
    assert single.outputs[0].token_ids == expected_tokens([1, 2, 3], two)


def test_llm_stream_grows_and_aborts_when_closed():
    llm = LLM.from_engine(make_engine())
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    texts = [o.outputs[0].text for o in llm.stream(PROMPT, params)]
    assert len(texts) == 10
    assert all(b.startswith(a) for a, b in itertools.pairwise(texts))
    stream = llm.stream(PROMPT, params)
    next(stream)
    stream.close()
    assert not llm.engine.has_work
    assert llm.engine.scheduler.pool.num_free == llm.engine.config.num_blocks


def test_a_failing_model_fails_the_call_and_leaves_a_clean_engine():
    def logits_of(prefix):
        if len(prefix) > 6:
            raise MemoryError("boom")
        return hash_logits(prefix, VOCAB)

    llm = LLM.from_engine(make_engine(model=FakeModel(logits_of=logits_of)))
    with pytest.raises(EngineError, match="MemoryError: boom"):
        llm.generate([PROMPT, [1]], SamplingParams(max_tokens=8, ignore_eos=True), use_tqdm=False)
    assert not llm.engine.has_work
    [output] = llm.generate([1], SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)
    assert output.outputs[0].finish_reason == "length"


def test_chat_uses_the_template():
    llm = LLM.from_engine(make_engine(tokenizer=FakeTokenizer()))
    params = SamplingParams(temperature=0, max_tokens=4)
    [output] = llm.chat([{"role": "user", "content": "bcd"}], params, use_tqdm=False)
    assert output.prompt_token_ids == [1, 2, 3]
    outputs = llm.chat([[{"role": "user", "content": "b"}], [{"role": "user", "content": "c"}]], params, use_tqdm=False)
    assert [o.prompt_token_ids for o in outputs] == [[1], [2]]


def test_all_logprobs_are_those_of_the_tokenizers_tokens():
    """Logits that are wider than the tokenizer: -1 listed tokens that can't be, and missed some that can."""
    wide = VOCAB + 5
    engine = make_engine(model=FakeModel(vocab_size=wide))
    params = SamplingParams(max_tokens=2, ignore_eos=True, seed=1, logprobs=-1, prompt_logprobs=-1)
    request = engine.admission.admit([1, 2, 3], params)
    engine.add(request)
    while engine.has_work:
        engine.step()
    output = engine.output_of(request)
    for entries in [*output.outputs[0].logprobs, *output.prompt_logprobs[1:]]:
        assert sorted(entries) == list(range(VOCAB))
        assert sum(math.exp(entry.logprob) for entry in entries.values()) == pytest.approx(1.0)
        assert sorted(entry.rank for entry in entries.values()) == list(range(1, VOCAB + 1))
