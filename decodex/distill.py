"""Self-distillation: prompts in, the model's own answers out, as training data for draft heads.

A run can be interrupted anywhere and started again: answers that are there are kept, and temperature and seed of each
hang on its id alone, so the tokens are those of a run that never stopped.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from decodex.errors import DecodexError, EngineError, RequestError, describe_error
from decodex.params import SamplingParams
from decodex.spec.train.errors import TrainingError
from decodex.spec.train.records import field_of, read_objects

if TYPE_CHECKING:
    from decodex.llm import LLM
    from decodex.request import Request

__all__ = ["AnswerPlan", "Distilled", "Question", "distill", "read_answered", "read_questions"]

ORIGIN = ("source", "license", "licence")  # copied from a prompt to its answer
TEMPERATURES = ((0.0, 0.25), (0.7, 0.5), (1.0, 0.25))


@dataclass(frozen=True)
class Question:
    """A conversation to answer; `origin`: where it comes from."""

    id: str
    messages: list[dict[str, Any]]
    origin: dict[str, Any]


@dataclass(frozen=True)
class AnswerPlan:
    """How answers are drawn. RequestError names what is out of range."""

    temperatures: tuple[tuple[float, float], ...] = TEMPERATURES  # with the share of the answers that each has
    max_tokens: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperatures or not all(0.0 < share < float("inf") for _, share in self.temperatures):
            raise RequestError("temperatures", self.temperatures, "temperatures with shares above 0")
        for temperature, _ in self.temperatures:
            SamplingParams(temperature=temperature, max_tokens=self.max_tokens, seed=self.seed)

    def params(self, question_id: str, room: int) -> SamplingParams:
        """Of one answer, which has `room` tokens of the context."""
        return SamplingParams(
            temperature=self._temperature(question_id),
            seed=self._hash("seed", question_id),
            max_tokens=min(self.max_tokens, room),
        )

    def _temperature(self, question_id: str) -> float:
        total = sum(share for _, share in self.temperatures)
        left = self._hash("temperature", question_id) / 2**64 * total
        for temperature, share in self.temperatures:
            left -= share
            if left < 0.0:
                return temperature
        return self.temperatures[-1][0]

    def _hash(self, use: str, question_id: str) -> int:
        text = f"{self.seed} {use} {question_id}".encode(errors="surrogatepass")
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


@dataclass
class Distilled:
    """What a run came to."""

    num_found: int = 0  # answers that were there
    num_answers: int = 0  # new ones
    num_tokens: int = 0  # of the new ones
    num_skipped: int = 0  # prompts without an answer: too long, refused, failed
    seconds: float = 0.0


def read_questions(paths: Sequence[Path], skip: Collection[str] = (), limit: int | None = None) -> list[Question]:
    """The prompts of JSONL files (plain or .gz) whose ids are not in `skip`, at most the first `limit`.

    A line has `id` and `prompt` (text) or `messages` (a conversation). TrainingError names file, line and field.
    """
    questions: list[Question] = []
    places: dict[str, str] = {}
    for place, value in (each for path in paths for each in read_objects(path)):
        question = _read_question(place, value)
        if question.id in places:
            raise TrainingError(f"{place}: field id is {question.id!r}, as at {places[question.id]}")
        places[question.id] = place
        if question.id not in skip:
            questions.append(question)
    return questions[:limit]


def _read_question(place: str, value: dict[str, Any]) -> Question:
    question_id = field_of(place, value, "id", str, "a text")
    if ("prompt" in value) == ("messages" in value):
        raise TrainingError(f"{place}: expected one of the fields prompt and messages")
    if "prompt" in value:
        messages = [{"role": "user", "content": field_of(place, value, "prompt", str, "a text")}]
    else:
        messages = field_of(place, value, "messages", list, "a list of messages")
    return Question(question_id, messages, {name: value[name] for name in ORIGIN if name in value})


def read_answered(path: Path) -> set[str]:
    """The ids of a file of answers; TrainingError for another kind of file."""
    ids = set()
    for place, value in read_objects(path, may_be_torn=True):
        field_of(place, value, "response_ids", list, "a list of token ids")
        ids.add(field_of(place, value, "id", str, "a text"))
    return ids


def distill(
    llm: LLM,
    questions: Iterable[Question],
    out: Path,
    plan: AnswerPlan,
    *,
    progress: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
) -> Distilled:
    """Append the model's answers to `out` (JSONL), a line as soon as each is finished; ids that are there are skipped.

    Nothing else may use `llm` meanwhile. `should_stop` is asked between steps. A prompt that can't be answered is
    skipped with a note on stderr. Raises RequestError for a model without a chat template, TrainingError for an `out`
    that holds something else.
    """
    llm.tokenizer.apply_chat_template([{"role": "user", "content": "a"}])
    answered = _cut_torn_line(out)
    todo = [question for question in questions if question.id not in answered]
    result = Distilled(num_found=len(answered))
    start = time.perf_counter()
    is_shown = progress and sys.stderr.isatty()
    with (
        out.open("ab") as file,
        tqdm(total=len(todo), desc="answers", disable=not is_shown) as bar,
        closing(_answer_all(llm, todo, plan, should_stop)) as ends,
    ):
        for question, request in ends:
            bar.update()
            if isinstance(request, DecodexError):
                result.num_skipped += 1
                tqdm.write(f"{question.id}: skipped, {request}", file=sys.stderr)
                continue
            [answer] = request.sequences
            response_ids = answer.token_ids[answer.num_prompt_tokens :]
            line = {
                "id": question.id,
                **question.origin,
                "temperature": request.params.temperature,
                "prompt_ids": request.prompt_token_ids,
                "response_ids": response_ids,
            }
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            result.num_answers += 1
            result.num_tokens += len(response_ids)
            result.seconds = time.perf_counter() - start
            bar.set_postfix_str(f"{result.num_tokens / result.seconds:.1f} tokens/s", refresh=False)
    return result


def _cut_torn_line(out: Path) -> set[str]:
    """Make `out` end with a whole line; the ids in it."""
    if not out.exists():
        return set()
    read_answered(out)  # refuses another kind of file before anything is changed
    with out.open("rb+") as file:
        end = sum(len(line) for line in file if line.endswith(b"\n"))
        file.truncate(end)
    return read_answered(out)


def _answer_all(
    llm: LLM, questions: Sequence[Question], plan: AnswerPlan, should_stop: Callable[[], bool]
) -> Generator[tuple[Question, Request | DecodexError]]:
    """Each question with its finished request, or why there is none, in the order of their ends."""
    engine = llm.engine
    todo = iter(questions)
    in_flight: dict[str, Question] = {}
    question = next(todo, None)
    try:
        while (question is not None or in_flight) and not should_stop():
            # twice the batch, so that a place that falls free is taken in the next step
            while question is not None and len(in_flight) < 2 * engine.config.max_num_seqs and engine.has_queue_room:
                try:
                    request = _admit(llm, question, plan)
                    engine.add(request)
                    in_flight[request.request_id] = question
                except RequestError as error:
                    yield question, error
                question = next(todo, None)
            for done in _step(llm):
                if done.is_finished:
                    yield in_flight.pop(done.request_id), done.error or done
    finally:
        for request_id in in_flight:
            engine.abort(request_id)


def _admit(llm: LLM, question: Question, plan: AnswerPlan) -> Request:
    token_ids = llm.tokenizer.apply_chat_template(question.messages)
    room = llm.engine.config.max_model_len - len(token_ids)
    return llm.engine.admission.admit(token_ids, plan.params(question.id, max(1, room)))


def _step(llm: LLM) -> list[Request]:
    try:
        return llm.engine.step()
    except Exception as error:
        raise error if isinstance(error, DecodexError) else EngineError(describe_error(error)) from error
