"""Structured output through the engine, on fake models: what comes out satisfies the constraint by other libraries,
whatever else the request asks for; what can't be honoured is refused by name; what fails is the request's own error."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import os
import re
import signal
import threading
import time

import jsonschema
import numpy as np
import pydantic
import pytest
import typing_extensions
from fakes import ByteTokenizer, FakeModel, Guesser, RandomProposer, TextTokenizer, hash_logits, make_engine

from decodex import LLM, AsyncLLM, RequestError, SamplingParams, StructuredOutputsParams, functional
from decodex.cli.flags import Parser
from decodex.cli.loading import add_sampling_flags, sampling_params
from decodex.definition import options_of
from decodex.errors import EngineError
from decodex.grammar.errors import MatcherError
from decodex.structured_outputs import read_output

V = 257
EOS = 256
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["x", "yy"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
DIGITS = 'root ::= [0-9] root | "."'


class City(pydantic.BaseModel):
    name: typing_extensions.Annotated[str, pydantic.Field(max_length=4)]
    size: int = pydantic.Field(ge=1, le=9)


@dataclasses.dataclass
class Point:
    x: bool
    y: bool


class Pair(typing_extensions.TypedDict):
    left: bool
    right: bool


def ascii_logits(prefix):
    """Every byte may come; printable ones are likelier, ends and quotes likelier still."""
    logits = hash_logits(prefix, V)
    logits[32:127] += 3
    logits[[34, 44, 46, 93, 125, EOS]] += 3
    return logits


def byte_engine(**options):
    model = options.pop("model", None) or FakeModel(V, logits_of=ascii_logits)
    options = {"num_blocks": 600, "max_model_len": 256, **options}
    return make_engine(model=model, tokenizer=ByteTokenizer(), **options)


def params_of(constraint, **values):
    return SamplingParams(**{"max_tokens": 100, "seed": 3, **values}, structured_outputs=constraint)


def run(engine, *requests):
    admitted = [engine.admission.admit(prompt, params) for prompt, params in requests]
    for request in admitted:
        engine.add(request)
    while engine.has_work:
        engine.step()
    assert engine.scheduler.pool.num_free == engine.config.num_blocks
    return [engine.output_of(request) for request in admitted]


def is_member(constraint, text):
    """By libraries that make no masks."""
    if "json" in constraint:
        jsonschema.validate(json.loads(text), constraint["json"])
        return True
    if constraint.get("json_object"):
        return isinstance(json.loads(text), dict)
    if "regex" in constraint:
        return re.fullmatch(constraint["regex"], text) is not None
    if "choice" in constraint:
        return text in constraint["choice"]
    return re.fullmatch(r"[0-9]*\.", text) is not None


KINDS = [
    {"json": SCHEMA},
    {"json": SCHEMA, "whitespace": "compact"},
    {"json_object": True},
    {"regex": r"(foo|ba[rz]){1,3}-\d{2,4}"},
    {"regex": r"[a-f]{3,9}", "backend": "outlines"},
    {"choice": ["yes", "no", "not at all", "é"]},
    {"grammar": 'root ::= digit* "."\ndigit ::= [0-9]', "backend": "xgrammar"},
    {"grammar": DIGITS, "backend": "llguidance"},
]


# --- what comes out ---


@pytest.mark.parametrize("constraint", KINDS, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0, 5.0])
def test_an_output_that_stops_is_a_member(constraint, temperature):
    params = [params_of(constraint, temperature=temperature, seed=seed) for seed in range(6)]
    outputs = run(byte_engine(), *(([65 + seed], p) for seed, p in enumerate(params)))
    reasons = [output.outputs[0].finish_reason for output in outputs]
    assert set(reasons) <= {"stop", "length"}
    assert "stop" in reasons or "grammar" in constraint or "json_object" in constraint
    for output in outputs:
        choice = output.outputs[0]
        assert output.error is None
        if choice.finish_reason == "stop":
            assert is_member(constraint, choice.text), choice.text
            assert choice.check == "passed"
        else:
            assert choice.check is None


def test_five_kinds_three_backends_and_free_rows_in_one_batch():
    """Each request gets what it gets alone, with and without drafts, in a pool that preempts."""
    requests = [([70 + i], params_of(constraint, seed=i)) for i, constraint in enumerate(KINDS)]
    tag = {"type": "structural_tag", "format": {"type": "any_text"}}
    requests += [([90], params_of({"structural_tag": tag})), ([91], SamplingParams(seed=1, max_tokens=60))]
    alone = [run(byte_engine(), request)[0].outputs[0] for request in requests]
    backends = {
        byte_engine().admission.admit([1], p).sequences[0].constrained.grammar.compiled.backend
        for _, p in requests
        if p.constrained
    }
    assert backends == {"llguidance", "xgrammar", "outlines"}
    drafts = RandomProposer(3, vocab_size=V, logits_of=ascii_logits)
    for options in ({}, {"proposer": drafts}, {"num_blocks": 70, "max_num_batched_tokens": 9}):
        together = run(byte_engine(**options), *requests)
        assert [output.outputs[0] for output in together] == alone


def test_choices_have_matchers_of_their_own():
    [output] = run(byte_engine(), ([1], params_of({"regex": "[a-z]{5}"}, n=4, temperature=3.0)))
    texts = [choice.text for choice in output.outputs]
    assert len(set(texts)) > 1
    assert all(re.fullmatch("[a-z]{5}", text) for text in texts)


# --- where it ends ---


def test_a_terminal_grammar_ends_under_min_tokens_and_ignore_eos():
    for values in ({}, {"min_tokens": 50}, {"ignore_eos": True}, {"min_tokens": 50, "ignore_eos": True}):
        [output] = run(byte_engine(), ([1], params_of({"regex": "[ab]{4}"}, **values)))
        choice = output.outputs[0]
        assert (choice.finish_reason, choice.stop_reason, len(choice.token_ids)) == ("stop", None, 4)
        assert re.fullmatch("[ab]{4}", choice.text)


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_the_end_ends_where_the_text_is_complete(ignore_eos):
    """A model that wants nothing but the end gets it at the first place where it is legal, or where min_tokens is."""
    model = FakeModel(V, logits_of=lambda prefix: np.eye(V, dtype=np.float32)[EOS] * 9)
    for min_tokens, length in ((0, 2), (1, 2), (5, 5)):
        params = params_of({"regex": "[ab]{2,8}"}, temperature=0, min_tokens=min_tokens, ignore_eos=ignore_eos)
        [output] = run(byte_engine(model=model), ([1], params))
        choice = output.outputs[0]
        assert choice.token_ids[-1] == EOS
        assert (choice.text, choice.finish_reason) == ("a" * length, "stop")


def test_special_tokens_and_the_tail_are_never_legal():
    """Token 0 is the end, 1 is special and spelled like text; the model's logits are wider than the vocabulary."""
    tokenizer = TextTokenizer(["</s>", "ab", "a", "b", "ab", "\n"])
    tokenizer.special_ids = frozenset({0, 1})

    def logits_of(prefix):
        return np.array([0, 9, 1, 1, 1, 2, 20, 20], dtype=np.float32)

    engine = make_engine(model=FakeModel(8, logits_of=logits_of), tokenizer=tokenizer)
    params = SamplingParams(max_tokens=30, seed=1, structured_outputs={"regex": "(ab){1,8}"})
    [output] = run(engine, ([2], params))
    assert not {0, 1, 5, 6, 7} & set(output.outputs[0].token_ids[:-1])
    assert re.fullmatch("(ab){1,8}", output.outputs[0].text)


def test_a_leading_space_is_part_of_a_constrained_text():
    """SentencePiece's decoders take one space off a text's beginning; a grammar has read it."""
    tokenizer = ByteTokenizer()
    tokenizer.num_stripped = 1
    engine = make_engine(model=FakeModel(V), tokenizer=tokenizer)
    [output] = run(engine, ([1], SamplingParams(structured_outputs={"choice": [" yes"]})))
    assert (output.outputs[0].text, output.outputs[0].check) == (" yes", "passed")


def test_a_row_without_a_token_names_the_constraint():
    bias = {token: -float("inf") for token in b"ab"}
    [output] = run(byte_engine(), ([1], params_of({"regex": "[ab]+"}, logit_bias=bias)))
    assert output.outputs[0].finish_reason == "error"
    assert "every token is masked by logit_bias, structured_outputs" in str(output.error)


def test_a_draft_of_ends_and_nonsense_changes_nothing():
    class Nonsense(Guesser):
        def propose(self, views):
            from decodex.spec.draft import Draft

            return [Draft((EOS, 97, EOS, 98, 97), (-1, 0, -1, 2, 1)) for _ in views]

    request = ([1], params_of({"regex": "[ab]{3,6}"}))
    assert run(byte_engine(proposer=Nonsense()), request)[0].outputs == run(byte_engine(), request)[0].outputs


# --- finish_within_budget ---


@pytest.mark.parametrize("max_tokens", [22, 30, 45])
@pytest.mark.parametrize("drafts", [False, True])
def test_the_json_closes_within_the_budget(max_tokens, drafts):
    """A model that never wants to end a number."""

    def logits_of(prefix):
        logits = hash_logits(prefix, V)
        logits[48:58] += 12
        return logits

    numbers = {"type": "array", "items": {"type": "integer"}}
    schema = {"type": "object", "properties": {"a": numbers, "b": numbers}, "required": ["a", "b"]}
    proposer = RandomProposer(1, vocab_size=V, logits_of=logits_of) if drafts else None
    engine = byte_engine(model=FakeModel(V, logits_of=logits_of), proposer=proposer)
    requests = []
    for seed in range(4):
        constraint = {"json": schema | {"additionalProperties": False}, "finish_within_budget": True}
        requests.append(([seed], params_of(constraint, seed=seed, max_tokens=max_tokens)))
    for output in run(engine, *requests):
        choice = output.outputs[0]
        assert choice.finish_reason == "stop", choice
        assert set(choice.parsed) == {"a", "b"}
        assert len(choice.token_ids) <= max_tokens
    [cut] = run(engine, ([1], params_of({"json": schema}, max_tokens=max_tokens)))
    assert (cut.outputs[0].finish_reason, cut.outputs[0].parsed) == ("length", None)


@pytest.mark.parametrize("max_tokens", [11, 14, 17])
@pytest.mark.parametrize("min_tokens", [0, 4])
def test_of_few_answers_all_that_fit_the_budget_stay_possible(max_tokens, min_tokens):
    """The longest has ten tokens; the other choice of the same seeds has all the tokens that it wants."""
    constraint, same = {"choice": ["yes", "no", "yes and no"]}, {"min_tokens": min_tokens, "temperature": 2.0}
    free = [([7], params_of(constraint, seed=seed, max_tokens=100, **same)) for seed in range(12)]
    constraint = constraint | {"finish_within_budget": True}
    steered = [([7], params_of(constraint, seed=seed, max_tokens=max_tokens, **same)) for seed in range(12)]
    expected = [output.outputs[0].text for output in run(byte_engine(), *free)]
    assert set(expected) == {"no", "yes and no"} | (set() if min_tokens else {"yes"})  # nothing can follow "no"
    assert [output.outputs[0].text for output in run(byte_engine(), *steered)] == expected


# --- schemas that are classes ---


@pytest.mark.parametrize("schema", [City, Point, Pair, SCHEMA, json.dumps(SCHEMA)], ids=lambda s: str(s)[:20])
def test_parsed_is_an_instance_of_the_schema(schema):
    llm = LLM.from_engine(byte_engine())
    [output] = llm.generate("go", schema=schema, use_tqdm=False)
    parsed = output.outputs[0].parsed
    assert output.outputs[0].finish_reason == "stop"
    expected = schema if schema in (City, Point) else dict
    assert isinstance(parsed, expected)
    plain = {City: pydantic.BaseModel.model_dump, Point: dataclasses.asdict}.get(type(parsed), dict)(parsed)
    assert json.loads(output.outputs[0].text) == plain


def test_schema_of_every_method():
    params = SamplingParams(seed=1, max_tokens=60)
    llm = LLM.from_engine(byte_engine())
    tokenizer = llm.tokenizer
    tokenizer.apply_chat_template = lambda messages, **_: tokenizer.encode(messages[0]["content"])
    message = [{"role": "user", "content": "x"}]
    [expected] = llm.generate("x", params, schema=Point, use_tqdm=False)
    assert isinstance(expected.outputs[0].parsed, Point)
    [chat] = llm.chat(message, params, schema=Point, use_tqdm=False)
    *_, streamed = llm.stream("x", params, schema=Point)
    *_, streamed_chat = llm.stream_chat(message, params, schema=Point)

    async def everything():
        async with AsyncLLM.from_engine(byte_engine()) as async_llm:
            async_llm.tokenizer.apply_chat_template = tokenizer.apply_chat_template
            outputs = [*await async_llm.generate("x", params, schema=Point)]
            outputs += await async_llm.chat(message, params, schema=Point)
            outputs.append([o async for o in async_llm.stream("x", params, schema=Point)][-1])
            outputs.append([o async for o in async_llm.stream_chat(message, params, schema=Point)][-1])
            return outputs

    for output in [chat, streamed, streamed_chat, *asyncio.run(everything())]:
        assert output.outputs[0].parsed == expected.outputs[0].parsed
        assert output.outputs[0].text == expected.outputs[0].text
    with pytest.raises(RequestError, match=r"schema: got .*expected to be absent beside structured_outputs"):
        llm.generate("x", params_of({"regex": "a"}), schema=Point)


def test_a_class_takes_its_own_fields_only_unless_it_says_so():
    class Open(City, extra="allow"):
        pass

    closed = json.loads(StructuredOutputsParams(json=City).constraint.text)
    opened = json.loads(StructuredOutputsParams(json=Open).constraint.text)
    assert closed["additionalProperties"] is False
    assert opened["additionalProperties"] is True


def test_a_validator_of_the_class_speaks_when_parsed_is_read():
    class Picky(pydantic.BaseModel):
        a: bool

        @pydantic.field_validator("a")
        @classmethod
        def refuse(cls, value):
            raise ValueError("never good enough")

    [output] = LLM.from_engine(byte_engine()).generate("x", schema=Picky, use_tqdm=False)
    assert output.error is None
    with pytest.raises(pydantic.ValidationError, match="never good enough"):
        _ = output.outputs[0].parsed


# --- refused by name ---


class Broken(pydantic.BaseModel):
    f: pydantic.InstanceOf[threading.Thread]


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({}, "structured_outputs", "no constraint.*exactly one of json"),
        ({"json": {}, "regex": "a"}, "structured_outputs", "json and regex.*exactly one"),
        ({"jsn": {}}, "structured_outputs.jsn", "did you mean 'json'"),
        ({"regexp": "a"}, "structured_outputs.regexp", "did you mean 'regex'"),
        ({"json": {"a": {1}}}, "structured_outputs.json", "not JSON serializable"),
        ({"json": {"a": float("nan")}}, "structured_outputs.json", "values that JSON has"),
        ({"json": "{"}, "structured_outputs.json", "it is no JSON"),
        ({"json": "[" * 100_000}, "structured_outputs.json", "it is no JSON"),
        ({"json": "3"}, "structured_outputs.json", "a schema as a dict"),
        ({"json": 3}, "structured_outputs.json", "a schema as a dict"),
        ({"json": int}, "structured_outputs.json", "a schema as a dict"),
        ({"json": Broken}, "structured_outputs.json", "PydanticInvalidForJsonSchema"),
        ({"json": "\ud800"}, "structured_outputs.json", "lone surrogates"),
        ({"json_object": "yes"}, "structured_outputs.json_object", "true or false"),
        ({"json_object": False}, "structured_outputs", "exactly one"),
        ({"regex": 3}, "structured_outputs.regex", "a regular expression"),
        ({"choice": []}, "structured_outputs.choice", "at least one text"),
        ({"choice": "yes"}, "structured_outputs.choice", "at least one text"),
        ({"choice": ["a", 1]}, "structured_outputs.choice[1]", "a text"),
        ({"choice": ["\udfff"]}, "structured_outputs.choice[0]", "lone surrogates"),
        ({"grammar": b"a"}, "structured_outputs.grammar", "a grammar"),
        ({"structural_tag": 3}, "structured_outputs.structural_tag", "a structural tag"),
        ({"regex": "a", "backend": "guess"}, "structured_outputs.backend", "one of auto, llguidance"),
        ({"regex": "a", "whitespace": "any"}, "structured_outputs.whitespace", "one of spaced"),
        ({"regex": "a", "whitespace": "compact"}, "structured_outputs.whitespace", "to be absent: regex"),
        ({"regex": "a", "finish_within_budget": 1}, "structured_outputs.finish_within_budget", "true or false"),
    ],
)
def test_refused_when_made(values, field, words):
    for make in (lambda: SamplingParams(structured_outputs=values), lambda: StructuredOutputsParams(**values)):
        with pytest.raises(RequestError, match=words) as caught:
            make()
        assert caught.value.field == field


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", "a"),
        ("stop_token_ids", [3]),
        ("include_stop_str_in_output", True),
        ("repetition_stop", 4),
        ("max_thinking_tokens", 0),
    ],
)
def test_what_would_cut_a_whole_output_is_refused(name, value):
    for kind in KINDS:
        with pytest.raises(RequestError, match=r"beside structured_outputs\.") as caught:
            SamplingParams(structured_outputs=kind, **{name: value})
        assert caught.value.field == name


@pytest.mark.parametrize("name", ["structured_output", "guided_json", "guided_choice", "response_format"])
def test_other_names_for_a_constraint_are_refused(name):
    with pytest.raises(RequestError, match="structured_outputs"):
        SamplingParams(**{name: {"type": "object"}})


@pytest.mark.parametrize("value", [3, "regex", [], {"regex"}, {1: 2}, True, False, StructuredOutputsParams])
def test_wrong_types_of_the_field_itself_are_refused(value):
    with pytest.raises(RequestError) as caught:
        SamplingParams(structured_outputs=value)
    assert caught.value.field == "structured_outputs"


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        ({"json": {"type": "string", "enum": []}}, r"\$"),
        ({"json": {"properties": {"a": {"$ref": "http://localhost/x"}}}}, r"\$\.properties\.a.*\$ref"),
        ({"json": {"$ref": "#"}}, r"\$ref"),
        ({"json": {"type": "integer", "minimum": 3, "maximum": 2}}, r"\$"),
        ({"json": {"type": "nonsense"}}, "type"),
        ({"json": {"properties": {"a": {"minLength": "x"}}}}, r"\$\.properties\.a.*minLength"),
        ({"regex": "(a"}, "regular expression"),
        ({"regex": "(?=a)b"}, "regular expression"),
        ({"grammar": "root ::= other"}, "other"),
        ({"structural_tag": {"type": "nonsense"}}, "tag"),
        ({"structural_tag": "{"}, "JSON"),
    ],
)
def test_refused_at_admission_with_the_place_and_the_next_is_untouched(constraint, words):
    engine = byte_engine()
    with pytest.raises(RequestError, match=words) as caught:
        engine.admission.admit([1], params_of(constraint))
    assert caught.value.field == f"structured_outputs.{next(iter(constraint))}"
    [output] = run(engine, ([1], params_of({"choice": ["yes"]})))
    assert output.outputs[0].text == "yes"


def test_a_model_without_ends_or_bytes_is_refused():
    for name, value in (("eos_token_ids", frozenset()), ("token_bytes", lambda: None)):
        tokenizer = ByteTokenizer()
        setattr(tokenizer, name, value)
        engine = make_engine(model=FakeModel(V), tokenizer=tokenizer)
        with pytest.raises(RequestError) as caught:
            engine.admission.admit([1], params_of({"regex": "a"}, max_tokens=3))
        assert caught.value.field == "structured_outputs"


def test_the_functional_api_refuses_what_it_would_ignore():
    import torch

    with pytest.raises(RequestError, match=r"structured_outputs.*outside of an engine"):
        functional.sample(torch.zeros(1, V), params_of({"regex": "a"}))


# --- K7: every field changes the result or is refused ---


def test_every_field_changes_the_result():
    """What a request gets without a field, it does not get with it."""
    free = run(byte_engine(), ([1], SamplingParams(seed=3, max_tokens=100)))[0].outputs[0].text
    json_text = {"json": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2}}
    pairs = {
        "json": ({"json_object": True}, {"json": SCHEMA}),
        "json_object": ({"regex": "[a-z]+"}, {"json_object": True}),
        "regex": ({"regex": "[a-z]{4}"}, {"regex": "[0-9]{4}"}),
        "choice": ({"choice": ["a"]}, {"choice": ["b"]}),
        "grammar": ({"grammar": 'root ::= "a"'}, {"grammar": 'root ::= "b"'}),
        "whitespace": (json_text, {**json_text, "whitespace": "compact"}),
        "finish_within_budget": ({"regex": "[a-z]{3,}\\."}, {"regex": "[a-z]{3,}\\.", "finish_within_budget": True}),
    }
    tag = {"begin": "<", "content": {"type": "const_string", "value": "yes"}, "end": ">"}
    forced = {"type": "structural_tag", "format": {"type": "tag", **tag}}
    pairs["structural_tag"] = ({"regex": "[^<]{5}"}, {"structural_tag": forced})
    for name, (without, with_it) in pairs.items():
        values = {"max_tokens": 12 if name == "finish_within_budget" else 100}
        texts = [run(byte_engine(), ([1], params_of(c, **values)))[0].outputs[0].text for c in (without, with_it)]
        assert len({free, *texts}) == 3, name
    shown = {backend: run_backend({"regex": "[a-z]{4}", "backend": backend}) for backend in ("llguidance", "outlines")}
    assert shown == {"llguidance": "llguidance", "outlines": "outlines"}
    assert {field.name for field in options_of(StructuredOutputsParams)} == {*pairs, "backend"}


def run_backend(constraint):
    [seq] = byte_engine().admission.admit([1], params_of(constraint)).sequences
    return seq.constrained.grammar.compiled.backend


# --- failures are the request's own ---


class Panic(BaseException):
    """What a panic of Rust code is in Python."""


class Failing:
    """A matcher that fails at its `at`-th call of `how`."""

    def __init__(self, inner, how, at, error):
        self._inner, self._how, self._left, self._error = inner, how, at, error

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def _count(self, how):
        self._left -= how == self._how
        if self._left < 0:
            raise self._error

    def fill(self, row):
        self._count("fill")
        return self._inner.fill(row)

    def accept(self, token):
        self._count("accept")
        return self._inner.accept(token)


@pytest.mark.parametrize("how", ["fill", "accept"])
@pytest.mark.parametrize("error", [MatcherError("on purpose"), MemoryError("on purpose"), Panic("on purpose")])
@pytest.mark.parametrize("at", [0, 3])
def test_a_failing_backend_is_its_requests_error(how, error, at):
    canary = ([2], params_of({"json": SCHEMA}))
    [alone] = run(byte_engine(), canary)
    engine = byte_engine()
    request = engine.admission.admit([1], params_of({"regex": "[a-z]{9}"}))
    [seq] = request.sequences
    seq.constrained._matcher = Failing(seq.constrained._matcher, how, at, error)
    engine.add(request)
    [beside] = run(engine, canary)
    failed = engine.output_of(request)
    assert beside.outputs == alone.outputs
    assert failed.outputs[0].finish_reason == "error"
    assert isinstance(failed.error, EngineError)
    assert "the grammar's backend failed" in str(failed.error)
    assert "on purpose" in str(failed.error)


def test_a_failing_model_leaves_the_masks_thread_well():
    calls = []

    def logits_of(prefix):
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError("boom")
        return ascii_logits(prefix)

    llm = LLM.from_engine(byte_engine(model=FakeModel(V, logits_of=logits_of)))
    with pytest.raises(EngineError, match="boom"):
        llm.generate("x", params_of({"regex": "[a-z]{9}"}), use_tqdm=False)
    [output] = llm.generate("x", params_of({"regex": "[a-z]{9}"}), use_tqdm=False)
    assert re.fullmatch("[a-z]{9}", output.outputs[0].text)


# --- the event loop and cancellation ---


def test_compiling_does_not_block_the_event_loop():
    async def main():
        engine = byte_engine()
        plain = engine.grammars.compile
        threads = []

        def slow(params, cancelled):
            threads.append(threading.current_thread())
            time.sleep(0.2)
            return plain(params, cancelled)

        engine.grammars.compile = slow
        async with AsyncLLM.from_engine(engine) as llm:
            task = asyncio.create_task(llm.generate("x", params_of({"choice": ["yes"]})))
            longest, last = 0.0, time.monotonic()
            while not task.done():
                await asyncio.sleep(0.005)
                now = time.monotonic()
                longest, last = max(longest, now - last), now
            assert (await task)[0].outputs[0].text == "yes"
        assert longest < 0.15
        assert threads[0] is not threading.main_thread()

    asyncio.run(main())


def test_cancelling_while_a_constraint_is_compiled_leaves_nothing():
    async def main():
        engine = byte_engine()
        plain = engine.grammars.compile
        seen = []

        def slow(params, cancelled):
            time.sleep(0.2)
            seen.append(cancelled.is_set())
            return plain(params, cancelled)

        engine.grammars.compile = slow
        async with AsyncLLM.from_engine(engine) as llm:
            task = asyncio.create_task(llm.generate("x", params_of({"choice": ["yes"]})))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.3)
            assert not engine.has_work
            assert (await llm.generate("x", params_of({"choice": ["no"]})))[0].outputs[0].text == "no"
            assert seen == [True, False]

    asyncio.run(main())


def test_a_forked_process_compiles_masks_and_checks_on_its_own():
    engine = byte_engine(check_outputs=True)
    [before] = run(engine, ([1], params_of({"choice": ["yes"]})))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            outputs = run(engine, ([1], params_of({"choice": ["yes"]})), ([1], params_of({"regex": "[0-9]{4}"})))
            os.write(writer, json.dumps([(o.outputs[0].text, o.outputs[0].check) for o in outputs]).encode())
            engine.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    [first, second] = json.loads(os.read(reader, 1000))
    os.close(reader)
    assert first == [before.outputs[0].text, "passed"]
    assert re.fullmatch("[0-9]{4}", second[0])
    assert second[1] == "passed"
    assert run(engine, ([1], params_of({"choice": ["yes"]})))[0].outputs == before.outputs
    engine.close()


# --- the independent check ---


class Verdict:
    """A check whose answers are given."""

    def __init__(self, answer):
        self.answer = answer
        self.texts = []

    judges = staticmethod(lambda constraint: True)

    def start(self):
        pass

    def submit(self, constraint, text):
        self.texts.append(text)
        return self.answer(text)


def test_a_mismatch_is_a_counted_error_of_the_request(caplog):
    from concurrent.futures import Future

    from decodex.verdicts import Verdicts

    def answer(text):
        verdict = Future()
        verdict.set_result("$.a: wrong" if text == "yes" else None)
        return verdict

    engine = byte_engine()
    engine.verdicts = Verdicts(Verdict(answer))
    wrong, right = run(engine, ([1], params_of({"choice": ["yes"]})), ([2], params_of({"choice": ["no"]})))
    assert engine.verdicts.num_mismatches == 1
    assert (wrong.outputs[0].finish_reason, wrong.outputs[0].check) == ("error", "failed")
    assert isinstance(wrong.error, EngineError)
    assert "does not satisfy structured_outputs.choice: $.a: wrong" in str(wrong.error)
    assert "does not satisfy" in caplog.text
    assert (right.outputs[0].finish_reason, right.outputs[0].check, right.error) == ("stop", "passed", None)


def test_an_end_is_told_when_the_verdict_has_come_and_others_go_on():
    from concurrent.futures import Future

    from decodex.verdicts import Verdicts

    pending = []

    def answer(text):
        pending.append(Future())
        return pending[-1]

    engine = byte_engine()
    engine.verdicts = Verdicts(Verdict(answer))
    request = engine.admission.admit([1], params_of({"choice": ["yes"]}))
    other = engine.admission.admit([2], SamplingParams(max_tokens=20, ignore_eos=True, seed=1))
    for each in (request, other):
        engine.add(each)
    while not other.is_finished:
        engine.step()
    shown = engine.output_of(request)
    assert (shown.outputs[0].text, shown.outputs[0].finish_reason, shown.finished) == ("yes", None, False)
    assert engine.has_work
    assert engine.step() == []
    pending[0].set_result(None)
    assert engine.step() == [request]
    assert not engine.has_work
    assert engine.output_of(request).outputs[0].finish_reason == "stop"
    late = engine.admission.admit([1], params_of({"choice": ["yes"]}))
    engine.add(late)
    while not pending[1:]:
        engine.step()
    engine.abort(late.request_id)
    assert not engine.has_work
    assert (late.sequences[0].completion.finish_reason, late.sequences[0].completion.check) == ("abort", None)


def test_a_killed_worker_is_replaced_and_its_text_is_called_unavailable():
    engine = byte_engine(check_outputs=True)
    check = engine.verdicts._check
    try:
        [first] = run(engine, ([1], params_of({"choice": ["yes"]})))
        assert first.outputs[0].check == "passed"
        process = check._worker._process
        os.kill(process.pid, signal.SIGSTOP)  # it hangs
        check._worker._timeout = 0.3
        hung, behind = run(engine, ([1], params_of({"choice": ["no"]})), ([2], params_of({"choice": ["yes"]})))
        assert [hung.outputs[0].check, behind.outputs[0].check] == ["unavailable", "passed"]
        assert (hung.outputs[0].finish_reason, hung.error, engine.verdicts.num_unavailable) == ("stop", None, 1)
        assert process.poll() is not None
        check._worker._process.kill()
        check._worker._process.wait()
        [again] = run(engine, ([1], params_of({"choice": ["yes"]})))
        assert again.outputs[0].check == "passed"
    finally:
        engine.close()


def test_the_check_can_be_switched_off():
    engine = byte_engine(check_outputs=False)
    [output] = run(engine, ([1], params_of({"choice": ["yes"]})))
    assert (output.outputs[0].finish_reason, output.outputs[0].check) == ("stop", None)


@pytest.mark.parametrize("digits", ["7", "1" * 5000, "-" + "9" * 4000])
def test_whole_numbers_of_any_length_are_read(digits):
    value = functools.reduce(lambda found, digit: 10 * found + int(digit), digits.lstrip("-"), 0)
    value = -value if digits[0] == "-" else value
    assert read_output({}, f'{{"a": [{digits}]}}') == {"a": [value]}

    class Account(pydantic.BaseModel):
        number: int

    assert read_output(Account, f'{{"number": {digits}}}') == Account.model_construct(number=value)


def test_a_value_that_json_has_not_is_refused_with_its_place():
    with pytest.raises(RequestError, match=r"\$\.properties\.a\.const"):
        StructuredOutputsParams(json={"properties": {"a": {"const": "\ud800"}}})
    deep: dict = {}
    for _ in range(5000):
        deep = {"items": deep}
    with pytest.raises(RequestError, match="64 levels"):
        StructuredOutputsParams(json=deep)


def test_the_empty_expression_and_a_choice_that_stands_there_twice():
    llm = LLM.from_engine(byte_engine())
    for wanted, text in (({"regex": ""}, ""), ({"choice": ["a", "a"]}, "a")):
        [output] = llm.generate([[1]], SamplingParams(max_tokens=4, structured_outputs=wanted))
        assert (output.outputs[0].text, output.outputs[0].finish_reason) == (text, "stop")


def test_after_the_shutdown_a_constrained_request_is_refused_as_others_are():
    async def main():
        llm = AsyncLLM.from_engine(byte_engine())
        llm.shutdown()
        for params in (SamplingParams(max_tokens=2), SamplingParams(max_tokens=2, structured_outputs={"regex": "a"})):
            with pytest.raises(EngineError, match="shut down"):
                await llm.generate([1], params)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--json-schema", "missing.json"], "--json-schema.*no such file"),
        (["--grammar", "missing.ebnf"], "--grammar.*no such file"),
        (["--grammar-backend", "outlines"], "--grammar-backend"),
        (["--json-whitespace", "compact"], "--json-whitespace"),
        (["--finish-within-budget"], "--finish-within-budget"),
    ],
)
def test_the_command_line_names_the_flag(flags, said):
    parser = Parser()
    add_sampling_flags(parser, {})
    with pytest.raises(RequestError, match=said):
        sampling_params(parser.parse_args(flags), {})
