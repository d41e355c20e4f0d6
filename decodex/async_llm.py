"""AsyncLLM: the same API for asyncio. The engine runs in a thread of its own; this side only admits and waits."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from decodex.admission import Prompt
from decodex.config import EngineConfig
from decodex.engine import Engine
from decodex.engine_thread import EngineThread, Listener
from decodex.errors import DecodexError, EngineError, RequestError
from decodex.llm import Messages, failed_output, is_single_prompt, one_params_each, template_call, with_schema
from decodex.outputs import RequestOutput
from decodex.params import SamplingParams
from decodex.request import Request

__all__ = ["LONG_TEXT", "AsyncLLM"]

LONG_TEXT = 2_000  # characters from which on a text is tokenized beside the event loop
MAX_COMPILING = 32  # constrained requests that wait for their grammars at a time


def _takes_long(prompt: Prompt, params: Any) -> bool:
    """Whether admission would hold up an event loop. Nothing has been checked yet."""
    if isinstance(prompt, Mapping):
        prompt = prompt.get("prompt", "")
    texts = (prompt, getattr(params, "prediction", None))
    is_long = any(isinstance(text, str) and len(text) > LONG_TEXT for text in texts)
    return is_long or getattr(params, "structured_outputs", None) is not None


class AsyncLLM:
    """A loaded model served to coroutines. `shutdown()`, `async with` or the last reference ends the engine thread."""

    def __init__(self, model: str | os.PathLike[str] = "smollm2-135m", **options: Any) -> None:
        self._start(Engine.load(EngineConfig(model=os.fspath(model), **options)))

    @classmethod
    def from_engine(cls, engine: Engine) -> AsyncLLM:
        """An AsyncLLM around an engine built by hand."""
        llm = cls.__new__(cls)
        llm._start(engine)
        return llm

    def _start(self, engine: Engine) -> None:
        self.engine = engine
        self.tokenizer = engine.tokenizer
        self._thread = EngineThread(engine)
        self._compiling = ThreadPoolExecutor(MAX_COMPILING, thread_name_prefix="decodex-admission")
        self._finalizer = weakref.finalize(self, self._thread.stop)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.shutdown)

    @property
    def failure(self) -> EngineError | None:
        """What ended the engine thread, or None while it is well."""
        return self._thread.failure

    def shutdown(self) -> None:
        """Abort what is in flight and end the engine thread."""
        self._thread.stop()
        self._thread.join()
        self._compiling.shutdown(wait=False, cancel_futures=True)
        self.engine.close()

    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        schema: Any = None,
        priority: int = 0,
    ) -> list[RequestOutput]:
        """Answer one prompt or a list of prompts, in order; see `LLM.generate`. Cancelling aborts them."""
        single = is_single_prompt(prompts)
        many: list[Any] = [prompts] if single else list(prompts)
        each = one_params_each(params, len(many), schema)

        async def one(place: int) -> RequestOutput:
            try:
                return await self._last(many[place], each[place], priority)
            except RequestError as error:
                if single:
                    raise
                return failed_output(f"refused-{place}", many[place], error)

        return list(await asyncio.gather(*(one(place) for place in range(len(many)))))

    async def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        schema: Any = None,
        priority: int = 0,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation; see `LLM.chat`."""
        options = template_call(add_generation_prompt, tools, chat_template_kwargs)
        prompt = self.tokenizer.apply_chat_template(messages, **options)
        return [await self._last(prompt, with_schema(params, schema), priority)]

    async def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        schema: Any = None,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
        only_last: bool = False,
    ) -> AsyncGenerator[RequestOutput]:
        """Answer one prompt, yielding the answer so far (the whole answer alone with `only_last`); closing the iterator
        or cancelling aborts the request. Only requests with the same `cache_salt` share a prefix cache."""
        params = with_schema(params, schema)
        request = await self.admit(prompt, params, request_id=request_id, priority=priority, cache_salt=cache_salt)
        listener = Listener(asyncio.get_running_loop(), only_last=only_last)
        self.submit(request, listener)
        finished = False
        try:
            while not finished:
                reply = await listener.next()
                if isinstance(reply, DecodexError):
                    finished = True
                    raise reply
                finished = reply.finished
                if finished and reply.error is not None:
                    raise reply.error
                yield reply
        finally:
            if not finished:
                self._thread.abort(request.request_id)

    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        schema: Any = None,
        priority: int = 0,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[RequestOutput]:
        """`stream` for a conversation."""
        options = template_call(add_generation_prompt, tools, chat_template_kwargs)
        prompt = self.tokenizer.apply_chat_template(messages, **options)
        return self.stream(prompt, params, schema=schema, priority=priority)

    async def abort(self, request_id: str) -> None:
        """End a request with finish reason `abort`; its stream gets that as its last output."""
        self.abort_soon(request_id)

    def abort_soon(self, request_id: str) -> None:
        """`abort`, for a caller that is no coroutine."""
        self._thread.abort(request_id)

    async def admit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> Request:
        """A request for `submit`, or its refusal (RequestError). Constraints are compiled in a thread, long texts are
        tokenized there."""
        admit = functools.partial(
            self.engine.admission.admit, request_id=request_id, priority=priority, cache_salt=cache_salt
        )
        if not _takes_long(prompt, params):
            return admit(prompt, params)
        cancelled = threading.Event()
        work = functools.partial(admit, prompt, params, cancelled=cancelled)
        try:
            admission = asyncio.get_running_loop().run_in_executor(self._compiling, work)
        except RuntimeError:  # no more work is taken
            raise self.failure or EngineError("the engine was shut down") from None
        try:
            return await admission
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def submit(self, request: Request, listener: Listener) -> None:
        """Queue an admitted request. Its replies go to the listener: outputs, the last one finished, or an error
        (QueueFullError, EngineError). Raises EngineError after a failure. `abort` ends it."""
        self._thread.add(request, listener)

    async def _last(self, prompt: Prompt, params: SamplingParams | None, priority: int) -> RequestOutput:
        last: RequestOutput | None = None
        async for output in self.stream(prompt, params, priority=priority, only_last=True):
            last = output
        assert last is not None, "a stream ended without an output"
        return last
