"""Custom logits processors: shapes, purity, per engine and per request, and whose error a failure is."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
import transformers
from fakes import EOS, VOCAB, RandomProposer, expected_tokens, hash_logits, make_engine

from decodex.errors import RequestError
from decodex.params import SamplingParams
from decodex.processors import FunctionProcessor, TransformersProcessor

PROMPT = [1, 2, 3, 4, 5]
PLAIN = {"temperature": 1.0, "seed": 3, "max_tokens": 20, "ignore_eos": True}


def run(engine, *requests):
    admitted = [engine.admission.admit(prompt, params) for prompt, params in requests]
    for request in admitted:
        engine.add(request)
    while engine.has_work:
        engine.step()
    return [engine.output_of(request) for request in admitted]


class Shift:
    """The batch interface, pure: logits of a token depend on how many tokens are before it."""

    pure = True

    def __init__(self) -> None:
        self.num_calls = 0

    def apply(self, logits, rows):
        self.num_calls += 1
        assert len(rows) == len(logits)
        for row, view in zip(logits, rows, strict=True):
            assert view.position == len(view.context)
            assert view.num_prompt_tokens <= len(view.token_ids)
            row += self.shift(view.context)

    @staticmethod
    def shift(context):
        return torch.from_numpy(hash_logits([*context, 99], VOCAB))


class Counter:
    """Stateful: every call bans the token that it counts to."""

    def __init__(self) -> None:
        self.count = 0

    def apply(self, logits, rows):
        assert len(rows) == 1, "no drafts for a stateful processor"
        logits[:, self.count % VOCAB] = -torch.inf
        self.count += 1


def shifted(prefix):
    return hash_logits(prefix, VOCAB) + Shift.shift(prefix).numpy()


def counted(prefix):
    logits = hash_logits(prefix, VOCAB)
    logits[(len(prefix) - len(PROMPT)) % VOCAB] = -np.inf
    return logits


@pytest.mark.parametrize("drafts", [None, "chain", "tree"])
@pytest.mark.parametrize("where", ["request", "engine"])
def test_pure_batch_interface(drafts, where):
    proposer = None if drafts is None else RandomProposer(1, chain=drafts == "chain")
    shift = Shift()
    options = {"logits_processors": [shift]} if where == "engine" else {}
    own = {"logits_processors": [shift]} if where == "request" else {}
    engine = make_engine(proposer=proposer, **options)
    params = [SamplingParams(**{**PLAIN, "seed": seed}, **own) for seed in range(3)]
    outputs = run(engine, *((PROMPT, item) for item in params))
    for output, item in zip(outputs, params, strict=True):
        assert output.outputs[0].token_ids == expected_tokens(PROMPT, item, logits_of=shifted)
        assert output.metrics.speculation_off is None
    if where == "engine":
        assert shift.num_calls == engine.model.num_forwards, "one call for all rows of a step"
    if drafts:
        assert engine.model.num_forwards <= 20


@pytest.mark.parametrize("where", ["request", "engine"])
def test_stateful_has_no_drafts_and_survives_preemption(where):
    options = {"logits_processors": [Counter()]} if where == "engine" else {}
    own = {"logits_processors": [Counter()]} if where == "request" else {}
    engine = make_engine(num_blocks=13, proposer=RandomProposer(1), **options)
    low = engine.admission.admit(PROMPT, SamplingParams(**PLAIN, **own), priority=5)
    engine.add(low)
    for _ in range(6):
        engine.step()
    engine.add(engine.admission.admit([2] * 40, SamplingParams(**{**PLAIN, "max_tokens": 4}), priority=0))
    while engine.has_work:
        engine.step()
    output = engine.output_of(low)
    assert output.metrics.num_preemptions > 0
    assert "logits_processors[0]" in output.metrics.speculation_off
    assert output.outputs[0].token_ids == expected_tokens(PROMPT, low.params, logits_of=counted)


def test_each_choice_has_its_own_state():
    params = SamplingParams(**PLAIN, n=3, logits_processors=[Counter()])
    [output] = run(make_engine(), (PROMPT, params))
    for choice in output.outputs:
        assert choice.token_ids == expected_tokens(PROMPT, params, choice.index, logits_of=counted)
    assert params.logits_processors[0].count == 0, "the caller's object is not touched"


@pytest.mark.parametrize("wrap", [lambda p: p, TransformersProcessor, lambda p: TransformersProcessor(p, pure=True)])
def test_transformers_processor(wrap):
    theirs = transformers.RepetitionPenaltyLogitsProcessor(1.5)
    params = SamplingParams(**PLAIN, logits_processors=[wrap(theirs)])
    [output] = run(make_engine(proposer=RandomProposer(1)), (PROMPT, params))
    [ours] = run(make_engine(), (PROMPT, SamplingParams(**PLAIN, repetition_penalty=1.5)))
    assert output.outputs[0].token_ids == ours.outputs[0].token_ids
    assert (output.metrics.speculation_off is None) == getattr(params.logits_processors[0], "pure", False)


def test_a_list_of_transformers_processors():
    theirs = transformers.LogitsProcessorList([transformers.RepetitionPenaltyLogitsProcessor(1.5)])
    [output] = run(make_engine(), (PROMPT, SamplingParams(**PLAIN, logits_processors=[theirs])))
    [ours] = run(make_engine(), (PROMPT, SamplingParams(**PLAIN, repetition_penalty=1.5)))
    assert output.outputs[0].token_ids == ours.outputs[0].token_ids


def test_plain_function_in_place_or_returned():
    def in_place(token_ids, logits):
        logits[token_ids[-1]] = -torch.inf

    def returned(token_ids, logits):
        return torch.where(torch.arange(VOCAB) == token_ids[-1], -torch.inf, logits).double()

    outputs = [
        run(make_engine(), (PROMPT, SamplingParams(**PLAIN, logits_processors=[f])))[0] for f in (in_place, returned)
    ]
    ids = outputs[0].outputs[0].token_ids
    assert ids == outputs[1].outputs[0].token_ids
    assert all(a != b for a, b in zip([PROMPT[-1], *ids], ids, strict=False))


def boom(token_ids, logits):
    raise KeyError("boom")


class Speechless(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def raising(error):
    def function(token_ids, logits):
        raise error

    return function


FAULTS = {
    "exit": (raising(SystemExit(1)), "SystemExit"),
    "cancelled": (raising(asyncio.CancelledError()), "CancelledError"),
    "speechless": (raising(Speechless()), "Speechless"),
    "device": (lambda ids, logits: logits.to("meta"), ""),
    "sparse": (lambda ids, logits: logits.to_sparse(), "got torch.float32"),
    "exception": (boom, "KeyError: 'boom'"),
    "nan": (lambda ids, logits: logits * torch.nan, "returned NaN"),
    "inf": (lambda ids, logits: logits + torch.inf, r"returned NaN or \+inf"),
    "shape": (lambda ids, logits: logits[:-1], r"expected floating-point logits \(12,\), got torch.float32 \(11,\)"),
    "type": (lambda ids, logits: 3, "got int"),
    "ints": (lambda ids, logits: logits.long(), "got torch.int64"),
}


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_its_own_requests_error(name, drafts):
    """The guilty one fails at the position where its processor does; its mates get what they get alone."""
    bad, message = FAULTS[name]

    def late(token_ids, logits):
        return bad(token_ids, logits) if len(token_ids) >= 8 else logits

    engine = make_engine(proposer=RandomProposer(2) if drafts else None)
    plain = SamplingParams(**PLAIN)
    processor = FunctionProcessor(late, pure=True)
    guilty, mate = run(engine, (PROMPT, SamplingParams(**PLAIN, logits_processors=[processor])), (PROMPT, plain))
    assert guilty.outputs[0].finish_reason == "error"
    assert guilty.outputs[0].token_ids == expected_tokens(PROMPT, plain)[:3]
    with pytest.raises(Exception, match=rf"position 8: logits_processors\[0\].*{message}"):
        raise guilty.error
    assert mate.error is None
    assert mate.outputs[0].token_ids == expected_tokens(PROMPT, plain)
    assert engine.scheduler.pool.num_free == engine.config.num_blocks


def test_an_engine_processor_that_fails_on_one_row_hurts_that_row_only():
    class Picky:
        pure = True

        def apply(self, logits, rows):
            if any(view.token_ids[0] == 7 for view in rows):
                raise ValueError("seven")

    engine = make_engine(logits_processors=[Picky()])
    plain = SamplingParams(**PLAIN)
    guilty, mate = run(engine, ([7, 2], plain), (PROMPT, plain))
    assert "engine logits_processors[0] failed: ValueError: seven" in str(guilty.error)
    assert mate.outputs[0].token_ids == expected_tokens(PROMPT, plain)


def test_a_processor_that_masks_everything_is_named():
    def ban(token_ids, logits):
        return torch.full_like(logits, -torch.inf)

    [output] = run(make_engine(), (PROMPT, SamplingParams(**PLAIN, logits_processors=[ban])))
    assert "position 5: no token is left" in str(output.error)
    assert "logits_processors" in str(output.error)


def test_what_cannot_be_copied_is_refused():
    class Locked:
        def __init__(self):
            import threading

            self.lock = threading.Lock()

        def apply(self, logits, rows):
            return logits

    class Torn:
        @property
        def pure(self):
            raise Speechless

        def __call__(self, token_ids, logits):
            return logits

    engine = make_engine()
    with pytest.raises(RequestError, match=r"logits_processors\[1\].*copied"):
        engine.admission.admit(PROMPT, SamplingParams(logits_processors=[boom, Locked()]))
    with pytest.raises(RequestError, match=r"logits_processors\[0\].*Speechless"):
        engine.admission.admit(PROMPT, SamplingParams(logits_processors=[Torn()]))


def test_what_a_function_closes_over_is_each_choices_own():
    """Two prompts, two choices and a later call: each counts from the beginning."""

    def counter(pace=[1]):  # noqa: B006 (a default that is changed, as closures are)
        count = [0]

        def forced(token_ids, logits):
            logits[:] = -torch.inf
            logits[1 + count[0] * pace[0]] = 0.0
            count[0] += 1
            return logits

        return forced

    engine, params = make_engine(), SamplingParams(n=2, max_tokens=3, logits_processors=[counter()])
    outputs = [*run(engine, (PROMPT, params), ([1], params)), *run(engine, (PROMPT, params))]
    assert [choice.token_ids for output in outputs for choice in output.outputs] == [[1, 2, 3]] * 6


def test_a_processor_that_changes_torchs_defaults():
    def rude(token_ids, logits):
        torch.set_default_dtype(torch.float64)
        return logits

    [output] = run(make_engine(), (PROMPT, SamplingParams(**PLAIN, logits_processors=[rude])))
    assert torch.get_default_dtype() is torch.float32
    assert output.error is None


def test_eos_is_an_ordinary_token_to_a_processor():
    def end(token_ids, logits):
        logits[EOS] = 100.0 if len(token_ids) >= 9 else -torch.inf

    params = SamplingParams(**{**PLAIN, "ignore_eos": False}, logits_processors=[end])
    [output] = run(make_engine(), (PROMPT, params))
    assert output.outputs[0].finish_reason == "stop"
    assert len(output.outputs[0].token_ids) == 5
