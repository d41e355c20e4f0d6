"""The thread that runs an engine for coroutines of any event loop. AsyncLLM is its face; this owns the engine."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
from collections.abc import Callable

from decodex.engine import Engine, check_torch_defaults
from decodex.errors import DecodexError, EngineError, describe_error
from decodex.outputs import RequestOutput
from decodex.request import Request

__all__ = ["EngineThread", "Listener", "Reply"]

logger = logging.getLogger(__name__)

Reply = RequestOutput | DecodexError


class Listener:
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


class EngineThread:
    """Steps the engine while there is work, and does what it is sent between steps."""

    def __init__(self, engine: Engine) -> None:
        self.failure: EngineError | None = None  # what ended the thread
        self._engine = engine
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._listeners: dict[str, Listener] = {}
        self._stopping = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="decodex-engine", daemon=True)
        self._thread.start()

    def add(self, request: Request, listener: Listener) -> None:
        """Queue a request; its replies, or its refusal, go to the listener. Raises EngineError after a failure."""
        self._send(lambda: self._add(request, listener))

    def abort(self, request_id: str) -> None:
        """End a request; after a failure there is nothing left to end."""
        if self.failure is None and os.getpid() == self._process:
            self._send(lambda: self._abort(request_id))

    def stop(self) -> None:
        """End what is in flight, and the thread; does not wait."""
        self._stopping = True
        self._commands.put(lambda: None)

    def join(self) -> None:
        """Wait for the thread's end."""
        if threading.current_thread() is not self._thread and os.getpid() == self._process:
            self._thread.join()

    def _send(self, command: Callable[[], None]) -> None:
        if os.getpid() != self._process:
            raise EngineError("this process was forked from the one that runs the engine: load a model of its own")
        if self.failure is not None:
            raise self.failure
        self._commands.put(command)

    # --- below: the engine's thread only ---

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._run_commands(block=not self._engine.has_work)
                if self._engine.has_work and self._may_step():
                    self._deliver(self._engine.step())
            self._fail(EngineError("the engine was shut down"))
        except BaseException as error:  # whatever it is, nobody must wait for ever
            logger.exception("the engine thread failed")
            self._fail(EngineError(describe_error(error)))

    def _may_step(self) -> bool:
        """Whether torch's defaults are as they should be; otherwise what is in flight fails, and the thread goes on."""
        try:
            check_torch_defaults()
        except EngineError as error:
            self._deliver(self._engine.fail_all(error))
            return False
        return True

    def _run_commands(self, block: bool) -> None:
        if block:
            self._commands.get()()
        while True:
            try:
                self._commands.get_nowait()()
            except queue.Empty:
                return

    def _add(self, request: Request, listener: Listener) -> None:
        try:
            self._engine.add(request)
        except DecodexError as error:
            listener.send(error)
        else:
            self._listeners[request.request_id] = listener

    def _abort(self, request_id: str) -> None:
        request = self._engine.abort(request_id)
        if request is not None:
            self._deliver([request])

    def _deliver(self, requests: list[Request]) -> None:
        for request in requests:
            output = self._engine.output_of(request)
            self._listeners[request.request_id].send(output)
            if output.finished:
                del self._listeners[request.request_id]

    def _fail(self, failure: EngineError) -> None:
        self.failure = failure
        self._deliver(self._engine.fail_all(failure))
        while True:  # commands that came too late: their requests get the failure too
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return
            command()
            self._deliver(self._engine.fail_all(failure))
