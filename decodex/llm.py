"""LLM: the synchronous Python API. Shaped as vLLM's, so that swapping engines is one line."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from tqdm.auto import tqdm

from decodex.admission import Prompt
from decodex.config import EngineConfig
from decodex.engine import Engine
from decodex.errors import DecodexError, EngineError, RequestError
from decodex.outputs import RequestOutput
from decodex.params import SamplingParams
from decodex.request import Request
from decodex.structured_outputs import StructuredOutputsParams

__all__ = ["LLM", "failed_output", "is_single_prompt", "one_params_each", "with_schema"]

Messages = Sequence[Mapping[str, Any]]


def is_single_prompt(prompts: Any) -> bool:
    """Whether `prompts` is one prompt (text, token ids or a mapping) and not a list of prompts."""
    if isinstance(prompts, (str, bytes, Mapping)) or not isinstance(prompts, Sequence):
        return True
    return len(prompts) > 0 and all(hasattr(item, "__index__") for item in prompts)


def one_params_each(params: Any, num_prompts: int, schema: Any = None) -> list[SamplingParams | None]:
    """One parameter object for all prompts, or one each; `schema` for all of them."""
    if params is None or isinstance(params, SamplingParams):
        return [with_schema(params, schema)] * num_prompts
    if not isinstance(params, Sequence) or isinstance(params, (str, bytes)):
        raise RequestError("params", params, "SamplingParams, or a list with one for each prompt")
    if len(params) != num_prompts:
        raise RequestError("params", f"{len(params)} items", f"one, or one for each of the {num_prompts} prompts")
    return [with_schema(item, schema) for item in params]


def with_schema(params: SamplingParams | None, schema: Any) -> SamplingParams | None:
    """Parameters whose output satisfies a schema and ends within max_tokens, which is no limit where none was given."""
    if schema is None:
        return params
    if params is not None and not isinstance(params, SamplingParams):
        raise RequestError("params", params, "SamplingParams")
    if params is not None and params.structured_outputs is not None:
        raise RequestError("schema", schema, "to be absent beside structured_outputs")
    constraint = StructuredOutputsParams(json=schema, finish_within_budget=True)
    if params is None:
        return SamplingParams(max_tokens=None, structured_outputs=constraint)
    return dataclasses.replace(params, structured_outputs=constraint)


def failed_output(request_id: str, prompt: Any, error: DecodexError) -> RequestOutput:
    """The reply to a request that was refused while others of the same call went on."""
    from decodex.outputs import RequestMetrics

    text = prompt if isinstance(prompt, str) else None
    return RequestOutput(request_id, text, [], [], True, RequestMetrics(arrival_time=0.0), error=error)


def template_call(
    add_generation_prompt: bool,
    tools: Sequence[Mapping[str, Any]] | None,
    chat_template_kwargs: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The keywords of `Tokenizer.apply_chat_template` for the chat methods. Raises RequestError."""
    extra = {} if chat_template_kwargs is None else chat_template_kwargs
    if not isinstance(extra, Mapping):
        raise RequestError("chat_template_kwargs", extra, "a mapping of the template's own variables")
    taken = {"messages", "tools", "add_generation_prompt"} & set(extra)
    if taken:
        raise RequestError("chat_template_kwargs", sorted(taken), "no name that chat itself takes")
    return {"add_generation_prompt": add_generation_prompt, "tools": tools, **extra}


class LLM:
    """A loaded model with its engine. Several threads may call it: their requests share the batch, steps take turns.

    Arguments are the fields of `EngineConfig`. Raises ModelError (a model that can't be loaded) or RequestError.
    """

    def __init__(self, model: str | os.PathLike[str] = "smollm2-135m", **options: Any) -> None:
        self._start(Engine.load(EngineConfig(model=os.fspath(model), **options)))

    @classmethod
    def from_engine(cls, engine: Engine) -> LLM:
        """An LLM around an engine built by hand (a custom model, tokenizer or proposer)."""
        llm = cls.__new__(cls)
        llm._start(engine)
        return llm

    def _start(self, engine: Engine) -> None:
        self.engine = engine
        self.tokenizer = engine.tokenizer
        self._turn = threading.RLock()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        schema: Any = None,
        priority: int = 0,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one prompt or a list of prompts (text or token ids), in order.

        `schema` (a Pydantic model, dataclass, TypedDict, or a JSON schema): every output satisfies it and ends within
        max_tokens, no limit where there are no `params`; `outputs[0].parsed` is the object.

        A single prompt that is refused raises its RequestError. In a list, the refused one gets an output with
        `error` set and the others finish.
        """
        single = is_single_prompt(prompts)
        many: list[Any] = [prompts] if single else list(prompts)
        return self._run(many, one_params_each(params, len(many), schema), priority, use_tqdm, raise_refusal=single)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        schema: Any = None,
        priority: int = 0,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them through the model's chat template.

        A message is {"role": ..., "content": ...}; `chat_template_kwargs` are variables of the template; `schema` as in
        `generate`. Raises
        RequestError for a model without a template; in a list, a refused conversation gets an output with `error`.
        """
        if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
            raise RequestError("messages", messages, "a list of messages, or a list of such lists")
        options = template_call(add_generation_prompt, tools, chat_template_kwargs)
        single = len(messages) > 0 and isinstance(messages[0], Mapping)
        conversations: Any = [messages] if single else messages
        prompts: list[Any] = []
        for conversation in conversations:
            try:
                prompts.append(self.tokenizer.apply_chat_template(conversation, **options))
            except RequestError as error:
                if single:
                    raise
                prompts.append(error)
        each = one_params_each(params, len(prompts), schema)
        return self._run(prompts, each, priority, use_tqdm, raise_refusal=single)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, schema: Any = None
    ) -> Generator[RequestOutput]:
        """Answer one prompt, yielding the answer so far after every step that adds to it; the last one is finished.

        Closing the iterator early aborts the request.
        """
        request = self.engine.admission.admit(prompt, with_schema(params, schema))
        with self._turn:
            self.engine.add(request)
        try:
            shown = -1
            while not request.is_finished:
                self._step(request)
                length = sum(len(seq.token_ids) for seq in request.sequences)
                if length != shown or request.is_finished:
                    shown = length
                    yield self.engine.output_of(request)
        finally:
            with self._turn:
                if not request.is_finished:
                    self.engine.abort(request.request_id)
        if request.error is not None:
            raise request.error

    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        schema: Any = None,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Generator[RequestOutput]:
        """`stream` for a conversation."""
        options = template_call(add_generation_prompt, tools, chat_template_kwargs)
        return self.stream(self.tokenizer.apply_chat_template(messages, **options), params, schema=schema)

    def _step(self, *waiting_for: Request) -> None:
        """One step, unless another thread's step has just finished what the caller waits for."""
        with self._turn:
            if waiting_for and all(request.is_finished for request in waiting_for):
                return
            try:
                self.engine.step()
            except Exception as error:
                failure = error if isinstance(error, EngineError) else EngineError(f"{type(error).__name__}: {error}")
                self.engine.fail_all(failure)
                raise failure from error

    def _run(
        self,
        prompts: list[Any],
        params: list[SamplingParams | None],
        priority: int,
        use_tqdm: bool,
        raise_refusal: bool,
    ) -> list[RequestOutput]:
        outputs: list[RequestOutput | None] = [None] * len(prompts)
        places: dict[int, Request] = {}  # in flight
        todo = iter(range(len(prompts)))
        bar = tqdm(total=len(prompts), desc="requests", disable=not (use_tqdm and sys.stderr.isatty()))
        num_tokens = 0
        try:
            place = next(todo, None)
            while place is not None or places:
                while place is not None and self.engine.has_queue_room:
                    outputs[place] = self._submit(prompts[place], params[place], priority, place, places, raise_refusal)
                    bar.update(outputs[place] is not None)
                    place = next(todo, None)
                if places or place is not None:
                    self._step(*places.values())
                for done in [index for index, request in places.items() if request.is_finished]:
                    output = self.engine.output_of(places.pop(done))
                    outputs[done] = output
                    num_tokens += sum(len(choice.token_ids) for choice in output.outputs)
                    rate = num_tokens / max(1e-9, bar.format_dict["elapsed"])
                    bar.set_postfix_str(f"{rate:.1f} tokens/s", refresh=False)
                    bar.update()
        finally:
            bar.close()
            with self._turn:
                for request in places.values():  # an interrupt or a refusal: nothing stays behind
                    self.engine.abort(request.request_id)
        return [output for output in outputs if output is not None]

    def _submit(
        self,
        prompt: Any,
        params: SamplingParams | None,
        priority: int,
        place: int,
        places: dict[int, Request],
        raise_refusal: bool,
    ) -> RequestOutput | None:
        """Queue one prompt of a call; returns its reply at once if it is refused."""
        try:
            if isinstance(prompt, RequestError):
                raise prompt
            request = self.engine.admission.admit(prompt, params, priority=priority)
            with self._turn:
                self.engine.add(request)
        except RequestError as error:
            if raise_refusal:
                raise
            return failed_output(f"refused-{place}", prompt, error)
        places[place] = request
        return None
