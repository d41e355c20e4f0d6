"""The thread that runs an engine for coroutines of any event loop. AsyncLLM is its face; this owns the engine."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable

from decodex.engine import Engine, check_torch_defaults
from decodex.errors import DecodexError, EngineError, describe_error
from decodex.outputs import RequestOutput
from decodex.request import Request

__all__ = ["EngineThread", "Listener", "Reply"]

logger = logging.getLogger(__name__)

Reply = RequestOutput | DecodexError

MAX_BACKLOG = 32  # replies that wait for a listener before some are left out


class Listener:
    """Where the replies of one or more requests go: a queue of the event loop that asked. Outputs are the answers so
    far, so that a listener that lags far behind gets the newest one in place of some."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, only_last: bool = False) -> None:
        """`only_last`: finished outputs are all that is wanted."""
        self.loop = loop
        self.only_last = only_last
        self._replies: deque[Reply] = deque()
        self._woken = asyncio.Event()

    async def next(self) -> Reply:
        """The next reply; one coroutine at a time may wait."""
        while not self._replies:
            self._woken.clear()
            await self._woken.wait()
        return self._replies.popleft()

    def put(self, reply: Reply) -> None:
        """Called in the event loop."""
        if len(self._replies) >= MAX_BACKLOG and isinstance(reply, RequestOutput):
            self._drop_outdated(reply.request_id)
        self._replies.append(reply)
        self._woken.set()

    def send(self, reply: Reply) -> None:
        """Called in the engine's thread."""
        _deliver_to(self.loop, [(self, reply)])

    def _drop_outdated(self, request_id: str) -> None:
        for place, reply in enumerate(self._replies):
            if isinstance(reply, RequestOutput) and reply.request_id == request_id:
                del self._replies[place]
                return


def _deliver_to(loop: asyncio.AbstractEventLoop, replies: list[tuple[Listener, Reply]]) -> None:
    """Hand replies over to an event loop, which is woken once; one that is closed has nobody who listens."""

    def put_all() -> None:
        for listener, reply in replies:
            listener.put(reply)

    try:
        loop.call_soon_threadsafe(put_all)
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
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Listener, Reply]]] = {}
        for request in requests:
            listener = self._listeners[request.request_id]
            if request.is_finished:
                del self._listeners[request.request_id]
            elif listener.only_last:
                continue
            by_loop.setdefault(listener.loop, []).append((listener, self._engine.output_of(request)))
        for loop, replies in by_loop.items():
            _deliver_to(loop, replies)

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
