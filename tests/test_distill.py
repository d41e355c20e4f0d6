"""Answers in the file are those that each prompt has alone, whatever interrupted the run that made them."""

from __future__ import annotations

import collections
import json
import pathlib
import random
from collections.abc import Callable

import pytest
from fakes import VOCAB, FakeModel, expected_tokens, make_engine

from decodex.distill import AnswerPlan, Question, distill, read_answered, read_questions
from decodex.errors import EngineError, ModelError, RequestError
from decodex.llm import LLM
from decodex.spec.train.errors import TrainingError
from decodex.spec.train.records import Record, read_records

PLAN = AnswerPlan(max_tokens=9, seed=3)
SOURCE = random.Random(5)
QUESTIONS = [
    Question(f"q{i}", [{"role": "user", "content": "".join(SOURCE.choices("bcdefghijkl", k=1 + i % 7))}], {"source": i})
    for i in range(23)
]


def make_llm(model: FakeModel | None = None) -> LLM:
    return LLM.from_engine(make_engine(model=model, max_num_seqs=4, max_model_len=24))


def stop_after(num_steps: int) -> Callable[[], bool]:
    """Asked once before each step."""
    steps = iter(range(num_steps))
    return lambda: next(steps, None) is None


def answers(path: pathlib.Path) -> dict[str, Record]:
    return {record.id: record for record in read_records([path], VOCAB)}


def test_each_answer_is_the_one_its_prompt_has_alone(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out.jsonl"
    result = distill(make_llm(), QUESTIONS, out, PLAN)
    found = answers(out)
    assert sorted(found) == sorted(question.id for question in QUESTIONS)
    for question in QUESTIONS:
        record, params = found[question.id], PLAN.params(question.id, 24)
        prompt = [ord(c) - ord("a") for c in question.messages[0]["content"]]
        assert record.prompt_ids == tuple(prompt)
        assert record.temperature == params.temperature
        assert record.response_ids == tuple(expected_tokens(prompt, params))
    assert (result.num_answers, result.num_found, result.num_skipped) == (23, 0, 0)
    assert result.num_tokens == sum(len(record.response_ids) for record in found.values())
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert all(line["source"] == int(line["id"][1:]) for line in lines)


def test_the_batch_stays_full(tmp_path: pathlib.Path) -> None:
    """One more step than tokens / 4 for each refill and for the end, when too few are left."""
    model = FakeModel()
    result = distill(make_llm(model), QUESTIONS, tmp_path / "out.jsonl", PLAN)
    assert result.num_tokens / 4 <= model.num_forwards <= result.num_tokens / 4 + 2 * PLAN.max_tokens


def test_an_interrupted_run_comes_to_the_same_answers(tmp_path: pathlib.Path) -> None:
    """Stopped after a few steps again and again, and killed in the middle of a line."""
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    distill(make_llm(), QUESTIONS, whole, PLAN)
    parts.touch()
    llm, source, num_runs = make_llm(), random.Random(1), 0
    while len((before := parts.read_bytes()).splitlines()) < 23:
        result = distill(llm, QUESTIONS, parts, PLAN, should_stop=stop_after(source.randrange(12)))
        assert not llm.engine.has_work
        assert parts.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
        assert result.num_found + result.num_answers == len(read_answered(parts))
        if num_runs % 3 == 2:
            parts.write_bytes(parts.read_bytes()[: -source.randrange(1, 40)])
        num_runs += 1
        assert num_runs < 200
    distill(llm, QUESTIONS, parts, PLAN)
    assert num_runs > 3
    assert answers(parts) == answers(whole)
    assert distill(llm, QUESTIONS, parts, PLAN).num_answers == 0


def test_a_failing_engine_keeps_what_is_finished(tmp_path: pathlib.Path) -> None:
    out, llm = tmp_path / "out.jsonl", make_llm()
    plain, steps = llm.engine.step, stop_after(12)
    llm.engine.step = lambda: 1 / 0 if steps() else plain()  # type: ignore[assignment, return-value]
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        distill(llm, QUESTIONS, out, PLAN)
    assert not llm.engine.has_work
    del llm.engine.step
    assert 0 < distill(llm, QUESTIONS, out, PLAN).num_found < 23
    assert len(answers(out)) == 23


def test_what_can_not_be_answered_is_skipped_with_a_note(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Too long for the context; nothing of the context left for 9 tokens; messages that no template takes."""
    texts = {"long": "b" * 24, "tight": "b" * 21, "good": "b"}
    questions = [Question(name, [{"role": "user", "content": text}], {}) for name, text in texts.items()]
    llm, out = make_llm(), tmp_path / "out.jsonl"
    template = llm.tokenizer.apply_chat_template

    def strict(messages: list[dict[str, str]]) -> list[int]:
        if messages[0].get("role") is None:
            raise RequestError("messages", messages, "a role")
        return list(template(messages))

    llm.tokenizer.apply_chat_template = strict  # type: ignore[method-assign, assignment]
    result = distill(llm, [*questions, Question("odd", [{}], {})], out, PLAN)
    found = answers(out)
    assert sorted(found) == ["good", "tight"]
    assert len(found["tight"].response_ids) <= 3
    assert (result.num_answers, result.num_skipped) == (2, 2)
    notes = capsys.readouterr().err.splitlines()
    assert [note.split(", ")[0] for note in notes] == ["long: skipped", "odd: skipped"]
    assert "prompt: got '24 tokens', expected at most 23 tokens" in notes[0]


def test_a_model_without_template_is_refused_at_once(tmp_path: pathlib.Path) -> None:
    llm, out = make_llm(), tmp_path / "out.jsonl"

    def refuse(messages: object) -> None:
        raise RequestError("messages", "a conversation", "a model with a chat template")

    llm.tokenizer.apply_chat_template = refuse  # type: ignore[method-assign, assignment]
    with pytest.raises(RequestError, match="a model with a chat template"):
        distill(llm, QUESTIONS, out, PLAN)
    assert not out.exists()


def test_temperatures_have_their_shares_whatever_the_order() -> None:
    plan = AnswerPlan(((0.0, 1.0), (0.7, 2.0), (1.0, 1.0)), max_tokens=9, seed=3)
    params = {f"p{i}": plan.params(f"p{i}", 9) for i in range(4000)}
    counts = collections.Counter(p.temperature for p in params.values())
    assert {t: count / 4000 for t, count in counts.items()} == pytest.approx({0.0: 0.25, 0.7: 0.5, 1.0: 0.25}, abs=0.03)
    assert len({p.seed for p in params.values()}) == 4000
    other = AnswerPlan(plan.temperatures, max_tokens=9, seed=4)
    assert 1000 < sum(other.params(name, 9).temperature == p.temperature for name, p in params.items()) < 2000
    for temperatures in ((), ((0.5, 0.0),), ((0.5, -1.0),), ((-0.5, 1.0),)):
        with pytest.raises(RequestError, match="temperature"):
            AnswerPlan(temperatures)
    with pytest.raises(RequestError, match="max_tokens"):
        AnswerPlan(max_tokens=0)


def test_questions_are_read(tmp_path: pathlib.Path) -> None:
    talk = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    values = [
        {"id": "a", "prompt": "hi", "source": "x", "license": "MIT", "other": 1},
        {"id": "b", "messages": talk, "licence": "CC0"},
        {"id": "c", "prompt": "ho"},
    ]
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    first, second, third = (
        Question("a", [{"role": "user", "content": "hi"}], {"source": "x", "license": "MIT"}),
        Question("b", talk, {"licence": "CC0"}),
        Question("c", [{"role": "user", "content": "ho"}], {}),
    )
    assert read_questions([path]) == [first, second, third]
    assert read_questions([path], skip={"a"}, limit=1) == [second]
    with pytest.raises(TrainingError, match=r"p.jsonl:1: field id is 'a', as at .*p.jsonl:1"):
        read_questions([path, path])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "a"}', "expected one of the fields prompt and messages"),
        ('{"id": "a", "prompt": "b", "messages": []}', "expected one of the fields prompt and messages"),
        ('{"id": "a", "prompt": 3}', "field prompt is 3, expected a text"),
        ('{"id": "a", "messages": "b"}', "field messages is 'b', expected a list of messages"),
        ('{"prompt": "b"}', "field id is missing"),
        ('{"id": "a", "prom', "expected a JSON object"),
    ],
)
def test_a_prompt_that_is_none_is_named(tmp_path: pathlib.Path, line: str, message: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(line)
    with pytest.raises(TrainingError, match=f"p.jsonl:1: {message}"):
        read_questions([path])


@pytest.mark.parametrize(
    "text", ['{"id": "a", "prompt": "b"}', "junk", '{\n"a": 1}', '{"id": "a", "response_ids": 1}\n{"id']
)
def test_another_kind_of_file_is_never_written_to(tmp_path: pathlib.Path, text: str) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text(text)
    with pytest.raises(TrainingError, match=r"out.jsonl:1: "):
        distill(make_llm(), QUESTIONS, out, PLAN)
    assert out.read_text() == text


@pytest.mark.real_model
def test_the_demo_model_answers_as_alone(tmp_path: pathlib.Path) -> None:
    try:
        llm = LLM("smollm2-135m", kv_cache_gib=0.25, max_num_seqs=3)
    except ModelError as error:
        pytest.skip(f"the demo model can't be fetched here: {error}")
    texts = ["What is a glacier?", "Name three animals.", "Why is the sky blue?", "Say hello.", "What is tea?"]
    questions = [Question(text, [{"role": "user", "content": text}], {}) for text in texts]
    plan, out = AnswerPlan(max_tokens=12), tmp_path / "out.jsonl"
    distill(llm, questions, out, plan, should_stop=stop_after(14))
    assert distill(llm, questions, out, plan).num_found > 0
    found = {record.id: record for record in read_records([out], llm.tokenizer.vocab_size)}
    for question in questions:
        [alone] = llm.chat(question.messages, plan.params(question.id, 12), use_tqdm=False)
        assert found[question.id].prompt_ids == tuple(alone.prompt_token_ids)
        assert found[question.id].response_ids == tuple(alone.outputs[0].token_ids)
