"""AsyncLLM: the same API for asyncio. The engine runs in a thread of its own; this side only admits and waits."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from decodex.admission import Prompt
from decodex.config import EngineConfig
from decodex.engine import Engine
from decodex.errors import DecodexError, EngineError, RequestError
from decodex.llm import Messages, failed_output, is_single_prompt, one_params_each
from decodex.outputs import RequestOutput
from decodex.params import SamplingParams
from decodex.request import Request

__all__ = ["AsyncLLM"]

logger = logging.getLogger(__name__)

Reply = RequestOutput | DecodexError


class _Listener:
    """Where a request's replies go: a queue of the event loop that asked."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.replies: asyncio.Queue[Reply] = asyncio.Queue()

    def send(self, reply: Reply) -> None:
        """Called in the engine's thread; a loop that is closed has nobody who listens."""
        try:
            self._loop.call_soon_threadsafe(self.replies.put_nowait, reply)
        except RuntimeError:
            logger.debug("a reply came after its event loop had closed")


class AsyncLLM:
    """A loaded model served to coroutines. `shutdown()` (or `async with`) ends the engine thread."""

    def __init__(self, model: str = "smollm2-135m", **options: Any) -> None:
        self._start(Engine.load(EngineConfig(model=model, **options)))

    @classmethod
    def from_engine(cls, engine: Engine) -> AsyncLLM:
        """An AsyncLLM around an engine built by hand."""
        llm = cls.__new__(cls)
        llm._start(engine)
        return llm

    def _start(self, engine: Engine) -> None:
        self.engine = engine
        self.tokenizer = engine.tokenizer
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._listeners: dict[str, _Listener] = {}
        self._failure: EngineError | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._loop, name="decodex-engine", daemon=True)
        self._thread.start()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.shutdown)

    @property
    def failure(self) -> EngineError | None:
        """What ended the engine thread, or None while it is well."""
        return self._failure

    def shutdown(self) -> None:
        """Abort what is in flight and end the engine thread."""
        self._stopping = True
        self._commands.put(lambda: None)
        self._thread.join()

    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int = 0,
    ) -> list[RequestOutput]:
        """Answer one prompt or a list of prompts, in order; see `LLM.generate`. Cancelling aborts them."""
        single = is_single_prompt(prompts)
        many: list[Any] = [prompts] if single else list(prompts)
        each = one_params_each(params, len(many))

        async def one(place: int) -> RequestOutput:
            try:
                return await self._last(many[place], each[place], priority)
            except RequestError as error:
                if single:
                    raise
                return failed_output(f"refused-{place}", many[place], error)

        return list(await asyncio.gather(*(one(place) for place in range(len(many)))))

    async def chat(
        self, messages: Messages, params: SamplingParams | None = None, **template_options: Any
    ) -> list[RequestOutput]:
        """Answer one conversation; see `LLM.chat`."""
        return [await self._last(self.tokenizer.apply_chat_template(messages, **template_options), params, 0)]

    async def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """Answer one prompt, yielding the answer so far; closing the iterator or cancelling aborts the request."""
        request = self.engine.admission.admit(prompt, params, request_id=request_id, priority=priority)
        listener = _Listener(asyncio.get_running_loop())
        self._send(lambda: self._add(request, listener))
        finished = False
        try:
            while not finished:
                reply = await listener.replies.get()
                if isinstance(reply, DecodexError):
                    finished = True
                    raise reply
                finished = reply.finished
                if finished and reply.error is not None:
                    raise reply.error
                yield reply
        finally:
            if not finished:
                self._send(lambda: self._abort(request.request_id))

    def stream_chat(
        self, messages: Messages, params: SamplingParams | None = None, **template_options: Any
    ) -> AsyncIterator[RequestOutput]:
        """`stream` for a conversation."""
        return self.stream(self.tokenizer.apply_chat_template(messages, **template_options), params)

    async def abort(self, request_id: str) -> None:
        """End a request with finish reason `abort`; its stream gets that as its last output."""
        self._send(lambda: self._abort(request_id))

    async def _last(self, prompt: Prompt, params: SamplingParams | None, priority: int) -> RequestOutput:
        last: RequestOutput | None = None
        async for output in self.stream(prompt, params, priority=priority):
            last = output
        assert last is not None, "a stream ended without an output"
        return last

    def _send(self, command: Callable[[], None]) -> None:
        if self._failure is not None:
            raise self._failure
        self._commands.put(command)

    # --- below: the engine's thread only ---

    def _loop(self) -> None:
        try:
            while not self._stopping:
                self._run_commands(block=not self.engine.has_work)
                if self.engine.has_work:
                    self._deliver(self.engine.step())
            self._fail(EngineError("the engine was shut down"))
        except Exception as error:
            logger.exception("the engine thread failed")
            self._fail(EngineError(f"{type(error).__name__}: {error}"))

    def _run_commands(self, block: bool) -> None:
        if block:
            self._commands.get()()
        while True:
            try:
                self._commands.get_nowait()()
            except queue.Empty:
                return

    def _add(self, request: Request, listener: _Listener) -> None:
        try:
            self.engine.add(request)
        except DecodexError as error:
            listener.send(error)
        else:
            self._listeners[request.request_id] = listener

    def _abort(self, request_id: str) -> None:
        request = self.engine.abort(request_id)
        if request is not None:
            self._deliver([request])

    def _deliver(self, requests: list[Request]) -> None:
        for request in requests:
            output = self.engine.output_of(request)
            self._listeners[request.request_id].send(output)
            if output.finished:
                del self._listeners[request.request_id]

    def _fail(self, failure: EngineError) -> None:
        self._failure = failure
        self._deliver(self.engine.fail_all(failure))
        while True:  # commands that came too late: their requests get the failure too
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return
            command()
            self._deliver(self.engine.fail_all(failure))
