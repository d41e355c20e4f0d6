"""Generation: the engine's side of one HTTP request, from the door to its end, however that comes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass

from decodex.async_llm import AsyncLLM
from decodex.engine_thread import Listener
from decodex.errors import EngineError, RequestError
from decodex.outputs import RequestOutput
from decodex.params import SamplingParams
from decodex.server.errors import ApiError, timed_out
from decodex.server.limits import Gate
from decodex.server.metrics import Metrics
from decodex.structured_outputs import FIELD

__all__ = ["Generation", "Job"]


@dataclass(frozen=True)
class Job:
    """What is asked of the engine: prompts, all with the same parameters."""

    request_id: str
    prompts: Sequence[list[int]]  # token ids
    params: SamplingParams
    priority: int = 0
    cache_salt: str = ""


class Generation:
    """Outputs of a job's prompts as they come, or the last ones alone. To be closed, which aborts whatever still runs.

    It may be ended from outside at any time: by its time limit, and when the server stops.
    """

    def __init__(self, llm: AsyncLLM, gate: Gate, metrics: Metrics, timeout: float | None) -> None:
        """Goes through the gate, or is refused there."""
        gate.enter(self.end)
        self._llm = llm
        self._gate = gate
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._received = time.time()
        self._timeout = timeout
        self._deadline = None if timeout is None else self._loop.time() + timeout
        self._scope: asyncio.Timeout | None = None  # while the response is being prepared
        self._timer: asyncio.TimerHandle | None = None  # once it streams
        self._ended_by: ApiError | None = None
        self._listener: Listener | None = None
        self._running: dict[str, int] = {}  # request id -> place of its prompt
        self._newest: dict[int, RequestOutput] = {}  # by place
        self._seen: dict[int, tuple[float, int]] = {}  # by place: when it had how many tokens
        self._is_closed = False

    @contextlib.asynccontextmanager
    async def limited(self) -> AsyncIterator[None]:
        """What is done within is cancelled, and the reason raised, when the generation is ended from outside."""
        try:
            async with asyncio.timeout_at(self._deadline) as self._scope:
                yield
        except TimeoutError:
            raise self._ended_by or timed_out(self._timeout or 0.0) from None
        finally:
            self._scope = None

    def limit_stream(self) -> None:
        """From now on whoever waits in `next` is told when the generation is ended from outside."""
        if self._deadline is not None:
            self._timer = self._loop.call_at(self._deadline, self.end, timed_out(self._timeout or 0.0))

    def end(self, error: ApiError) -> None:
        """End it from outside."""
        if self._ended_by is None:
            self._ended_by = error
            if self._scope is not None:
                self._scope.reschedule(self._loop.time())
            elif self._listener is not None:
                self._listener.put(EngineError(str(error)))  # wakes who waits
                self._abort()

    async def start(self, job: Job, *, only_last: bool) -> None:
        """Admit and submit every prompt. Raises RequestError, QueueFullError or EngineError."""
        self._listener = Listener(self._loop, only_last=only_last)
        params, requests = job.params, []
        for place, prompt in enumerate(job.prompts):
            try:
                request = await self._llm.admit(
                    prompt,
                    params,
                    request_id=f"{job.request_id}-{place}",
                    priority=job.priority,
                    cache_salt=job.cache_salt,
                )
            except RequestError as error:
                if error.field.startswith(f"{FIELD}."):
                    self._metrics.refused_constraint(error.field.split(".")[1])
                raise
            if params.seed is None and len(job.prompts) > 1:  # one seed for all, so that it replays all
                params = dataclasses.replace(params, seed=request.seed)
            requests.append(request)
            await asyncio.sleep(0)  # many prompts with many choices are some work
        for place, request in enumerate(requests):
            self._running[request.request_id] = place
            self._llm.submit(request, self._listener)

    async def next(self) -> tuple[int, RequestOutput] | None:
        """The next output and the place of its prompt; None when all have finished. Raises what ended it."""
        if not self._running:
            return None
        assert self._listener is not None, "next before start"
        reply = await self._listener.next()
        if self._ended_by is not None:
            raise self._ended_by
        if not isinstance(reply, RequestOutput):
            raise reply
        place = self._running[reply.request_id]
        self._newest[place] = reply
        self._observe(place, reply)
        if reply.finished:
            del self._running[reply.request_id]
            if reply.error is not None:
                raise reply.error
        return place, reply

    async def outputs(self) -> AsyncGenerator[tuple[int, RequestOutput]]:
        """All outputs that are left."""
        while (item := await self.next()) is not None:
            yield item

    async def last(self) -> list[RequestOutput]:
        """Wait for the end: the finished outputs, by place."""
        while await self.next() is not None:
            pass
        return self.newest

    @property
    def newest(self) -> list[RequestOutput]:
        """The newest output of each prompt that has one, by place."""
        return [self._newest[place] for place in sorted(self._newest)]

    def close(self) -> None:
        """Abort what runs. A second time does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self._gate.leave(self.end)
        if self._timer is not None:
            self._timer.cancel()
        self._abort()
        if self._listener is not None:
            self._metrics.ended(self.newest, time.time() - self._received)

    def _abort(self) -> None:
        for request_id in self._running:
            self._llm.abort_soon(request_id)

    def _observe(self, place: int, output: RequestOutput) -> None:
        """Times between tokens: of each output, or of the whole where that is all there is."""
        now, count = time.time(), max(len(choice.token_ids) for choice in output.outputs)
        before = self._seen.get(place)
        if count == 0:
            return
        if before is None:
            first = output.metrics.first_token_time or now
            self._metrics.first_token(first - self._received)
            before = (first, 1)
        if count > before[1]:
            self._metrics.between_tokens((now - before[0]) / (count - before[1]))
        self._seen[place] = (now, count)
