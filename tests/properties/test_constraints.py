"""Constraints under everything else: K2 (every path gives the same), K6 (nothing runs into a dead end), K8 (a hostile
constraint is its own request's fault) and K11 (a matcher's state is that of its committed tokens)."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from fakes import ByteTokenizer, FakeModel, RandomProposer, hash_logits, make_engine
from hypothesis import given, settings
from hypothesis import strategies as st
from properties.every_field import METHODS, KnownProposer, answer, refused, run

from decodex.errors import EngineError
from decodex.params import SamplingParams
from decodex.request import Status

V = 257
EOS = 256
OBJECT = {
    "type": "object",
    "properties": {"k": {"enum": ["a", 1, None]}, "n": {"type": "integer", "minimum": -5, "maximum": 20}},
    "required": ["k"],
    "additionalProperties": False,
}
ARRAY = {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}
POOL = [
    {"json": OBJECT},
    {"json": ARRAY, "whitespace": "compact"},
    {"json": {"type": "string", "maxLength": 5}},
    {"regex": "(ab|c){1,4}d?"},
    {"regex": "[a-d]{2,6}", "backend": "outlines"},
    {"regex": "é{2}[^a-z]x", "backend": "llguidance"},
    {"choice": ["a", "ab", "abc", "xyz"]},
    {"grammar": 'root ::= "(" root ")" | "x"', "backend": "xgrammar"},
    {"grammar": 'root ::= [ab] root | "."', "backend": "llguidance"},
    {"json": OBJECT, "finish_within_budget": True},
    {"regex": "[a-d]+;", "finish_within_budget": True},
]


def logits_of(prefix):
    """Letters, digits and signs, so that drafts are accepted and texts end now and then."""
    logits = hash_logits(prefix, V)
    logits[list(b'abcdx.();"}]')] += 2
    logits[EOS] += 2
    return logits


def engine_of(**options):
    options = {"num_blocks": 400, "max_model_len": 96, **options}
    return make_engine(model=FakeModel(V, logits_of=logits_of), tokenizer=ByteTokenizer(), **options)


@st.composite
def constrained_requests(draw):
    """A prompt and parameters, with a constraint or without."""
    values = {
        "seed": draw(st.integers(0, 2**32)),
        "max_tokens": draw(st.sampled_from([1, 7, 20, 40])),
        "temperature": draw(st.sampled_from([0.0, 0.7, 1.0, 3.0])),
    }
    for name, some in {
        "n": [2],
        "top_p": [0.6],
        "min_p": [0.1],
        "repetition_penalty": [1.3],
        "frequency_penalty": [1.5],
        "dry_multiplier": [0.8],
        "no_repeat_ngram_size": [3],
        "logit_bias": [{97: 5.0, 98: -5.0}, {99: -float("inf")}],
        "bad_words": [["ab"], ["x"]],
        "min_tokens": [1],
        "ignore_eos": [True],
        "logprobs": [2],
        "logprobs_mode": ["processed"],
        "skip_special_tokens": [False],
    }.items():
        if draw(st.integers(0, 4)) == 0:
            values[name] = draw(st.sampled_from(some))
    constraint = draw(st.sampled_from([*POOL, None]))
    if constraint is not None and constraint.get("finish_within_budget"):
        values["max_tokens"] = 40
    prompt = draw(st.lists(st.integers(0, 255), min_size=1, max_size=6))
    return prompt, SamplingParams(**values, structured_outputs=constraint)


EXAMPLE = {
    "requests": st.lists(constrained_requests(), min_size=1, max_size=4),
    "proposer_seed": st.integers(0, 1000),
    "style": st.sampled_from(KnownProposer.STYLES),
    "num_blocks": st.integers(26, 60),
    "max_num_seqs": st.integers(1, 6),
    "budget": st.sampled_from([3, 16, 64]),
}


def check(requests, proposer_seed, style, num_blocks, max_num_seqs, budget):
    """Alone without drafts is what chains, trees, awkward drafts, batch mates, chunks and preemption must give."""
    outputs = [run(engine_of(), [request])[0] for request in requests]
    expected = [answer(output) for output in outputs]
    known = [output.prompt_token_ids + choice.token_ids for output in outputs for choice in output.outputs]
    options = {"num_blocks": num_blocks, "max_num_seqs": max_num_seqs, "max_num_batched_tokens": budget}
    for proposer in (
        None,
        RandomProposer(proposer_seed, V, chain=True, logits_of=logits_of),
        RandomProposer(proposer_seed, V, logits_of=logits_of),
        KnownProposer(known, style, V),
    ):
        mixed = run(engine_of(proposer=proposer, **options), requests)
        for request, output, right in zip(requests, mixed, expected, strict=True):
            assert answer(output) == right, request
    for method in METHODS:
        mixed = run(engine_of(speculative_config=method, **options), requests)
        assert [answer(output) for output in mixed] == expected, method
    for (_, params), output in zip(requests, outputs, strict=True):
        for choice in output.outputs:
            assert choice.check != "failed"
            if params.constrained is not None and choice.finish_reason == "stop":
                assert_member(params.constrained, choice.text)
            if params.constrained is not None and params.constrained.finish_within_budget:
                assert choice.finish_reason in ("stop", "error")


def assert_member(constraint, text):
    if constraint.kind == "json":
        json.loads(text)
    elif constraint.kind == "regex":
        assert re.fullmatch(constraint.regex, text)
    elif constraint.kind == "choice":
        assert text in constraint.choice


@settings(max_examples=25)
@given(**EXAMPLE)
def test_every_path_gives_the_same(**example):
    check(**example)


@pytest.mark.slow
@settings(max_examples=500)
@given(**EXAMPLE)
def test_every_path_gives_the_same_in_a_sweep(**example):
    check(**example)


# --- K11: state ---


def mask_of(text):
    rows = np.zeros((1, text.grammar.vocabulary.num_words), dtype=np.int32)
    text.fill([()], rows)
    return rows[0].tolist()


@settings(max_examples=25)
@given(
    requests=st.lists(constrained_requests(), min_size=1, max_size=4),
    proposer_seed=st.integers(0, 1000),
    num_blocks=st.integers(26, 60),
)
def test_state_is_that_of_the_committed_tokens(requests, proposer_seed, num_blocks):
    """After every step, drafts, rejections and preemptions included."""
    proposer = RandomProposer(proposer_seed, V, logits_of=logits_of)
    engine = engine_of(proposer=proposer, num_blocks=num_blocks, max_num_seqs=3)
    admitted = [engine.admission.admit(prompt, params) for prompt, params in requests]
    for request in admitted:
        engine.add(request)
    while engine.has_work:
        engine.step()
        for request in admitted:
            for seq in request.sequences:
                if seq.constrained is None or seq.status not in (Status.WAITING, Status.RUNNING):
                    continue
                fresh = seq.constrained.grammar.begin(seq.max_total_tokens - seq.num_prompt_tokens)
                for token in seq.token_ids[seq.num_prompt_tokens :]:
                    fresh.push(token)
                assert mask_of(seq.constrained) == mask_of(fresh)


# --- K6: the worst models ---

WORST = {
    "whitespace": b" \n\t",
    "digits": b"0123456789",
    "opening brackets": b"[{(",
    "quotes and escapes": b'"\\',
    "letters": b"abcdefgh",
}


@pytest.mark.parametrize("liked", WORST)
@pytest.mark.parametrize("constraint", [c for c in POOL if "grammar" not in c] + [{"json_object": True}], ids=str)
def test_a_model_that_always_prefers_the_same_finishes_or_is_cut(constraint, liked):
    """No row is left without a token, and within the budget the text is complete."""

    def stubborn(prefix):
        logits = hash_logits(prefix, V)
        logits[list(WORST[liked])] += 20
        return logits

    engine = make_engine(
        model=FakeModel(V, logits_of=stubborn), tokenizer=ByteTokenizer(), num_blocks=400, max_model_len=256
    )
    for steered in (False, True):
        params = SamplingParams(
            max_tokens=60, seed=1, structured_outputs={**constraint, "finish_within_budget": steered}
        )
        [output] = run(engine, [([1], params)])
        assert output.outputs[0].finish_reason in (("stop",) if steered else ("stop", "length")), output


# --- K8: blast radius ---

HOSTILE = [
    {"json": '{"$ref": "#"}'},
    {"json": '{"$ref": "http://localhost:1/x"}'},
    {"json": '{"type": "string", "pattern": "(a+)+$"}'},
    {"json": '{"type": "string", "pattern": "(?=.*a)b"}'},
    {"json": '{"enum": []}'},
    {"json": '{"type": "object", "minProperties": 3, "maxProperties": 2}'},
    {"json": '{"anyOf": [' + ",".join(f'{{"const": {i}}}' for i in range(3000)) + "]}"},
    {"json": '{"items": ' * 200 + "{}" + "}" * 200},
    {"json": '{"type": "array", "minItems": 1000000}'},
    {"json": '{"type": "string", "minLength": 100000000}'},
    {"json": '{"properties": 3}'},
    {"regex": "(a{1000}){1000}"},
    {"regex": "("},
    {"regex": "((((((a*)*)*)*)*)*)*b"},
    {"regex": r"(a)\1"},
    {"regex": "[^\\x00-\\x{10FFFF}]"},
    {"choice": ["\x00", "a" * 8000]},
    {"choice": [str(i) for i in range(3000)]},
    {"grammar": "root ::= root"},
    {"grammar": 'root ::= "a" root'},
    {"grammar": "root ::= " + "(" * 500},
    {"grammar": "start: /(a+)+b/"},
    {"structural_tag": "[1"},
    {"structural_tag": {"type": "structural_tag", "format": {"type": "or", "elements": []}}},
]
CANARY = ([3, 4], SamplingParams(seed=9, n=2, max_tokens=30, logprobs=2, structured_outputs={"json": OBJECT}))


def submit(engine, constraint):
    """The request, or None where it is refused by name."""
    admitted = []

    def admit():
        params = SamplingParams(max_tokens=20, seed=1, structured_outputs=constraint)
        admitted.append(engine.admission.admit([1], params))

    error = refused(admit)
    if error is not None:
        assert error.field.startswith("structured_outputs"), error
        return None
    engine.add(admitted[0])
    return admitted[0]


@pytest.fixture(scope="module")
def canary():
    return answer(run(engine_of(), [CANARY])[0])


@settings(max_examples=20)
@given(
    hostile=st.lists(st.tuples(st.sampled_from(HOSTILE), st.sampled_from(["auto", "llguidance"])), max_size=3),
    when=st.integers(0, 6),
    drafts=st.booleans(),
)
def test_hostile_constraints_beside_a_canary(canary, hostile, when, drafts):
    engine = engine_of(proposer=RandomProposer(3, V, logits_of=logits_of) if drafts else None)
    assert answer(run(engine, [CANARY])[0]) == canary
    beside = engine.admission.admit(*CANARY)
    engine.add(beside)
    for _ in range(when):
        engine.step()
    requests = [submit(engine, {**constraint, "backend": backend}) for constraint, backend in hostile]
    while engine.has_work:
        engine.step()
    assert answer(engine.output_of(beside)) == canary
    for request in filter(None, requests):
        output = engine.output_of(request)
        assert output.outputs[0].finish_reason in ("stop", "length", "error")
        assert output.error is None or isinstance(output.error, EngineError)
        assert output.outputs[0].check != "failed"
    assert answer(run(engine, [CANARY])[0]) == canary


@pytest.mark.parametrize("constraint", HOSTILE, ids=lambda c: str(c)[:40])
def test_each_hostile_constraint_is_refused_by_name_or_answered(constraint):
    engine = engine_of()
    request = submit(engine, constraint)
    if request is None:
        return
    while engine.has_work:
        engine.step()
    choice = engine.output_of(request).outputs[0]
    assert choice.finish_reason in ("stop", "length", "error")
    assert choice.check != "failed"
