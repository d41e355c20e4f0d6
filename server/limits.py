"""What keeps one client from holding up the others: bounded bodies and queues, time limits, and clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from decodex.errors import QueueFullError
from decodex.server.errors import ApiError, timed_out
from decodex.server.json_text import read_json

__all__ = ["ClientGone", "Gate", "cancel", "read_body", "shutting_down", "unless_gone", "until_gone"]

T = TypeVar("T")

BODY_TIMEOUT = 60.0  # seconds for a body to come
MAX_BODIES = 64  # of the greatest length, being read at a time


class ClientGone(Exception):
    """Nobody is there for the answer any more."""


class Gate:
    """Knows the requests that are being served, lets no more in than there is room for, and none while draining."""

    def __init__(self, most: int) -> None:
        self.is_draining = False
        self._most = most
        self._num_body_bytes = 0  # of bodies that are being read
        self._enders: set[Callable[[ApiError], None]] = set()

    def enter(self, end: Callable[[ApiError], None]) -> None:
        """Let a request in, or refuse it; `end` is called with an error to end it."""
        if self.is_draining:
            raise shutting_down()
        if len(self._enders) >= self._most:
            raise QueueFullError(f"{self._most} requests are being served already")
        self._enders.add(end)

    def leave(self, end: Callable[[ApiError], None]) -> None:
        """It has ended."""
        self._enders.discard(end)

    def take(self, num_bytes: int, limit: int) -> None:
        """Count bytes of a body that is being read, or refuse them: there is room for MAX_BODIES of `limit` bytes."""
        if self._num_body_bytes + num_bytes > MAX_BODIES * limit:
            raise QueueFullError("too many long bodies are being read")
        self._num_body_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        """The body has been read."""
        self._num_body_bytes -= num_bytes

    def end_all(self, error: ApiError) -> None:
        """End whatever runs."""
        for end in list(self._enders):
            end(error)


def shutting_down() -> ApiError:
    """For requests that come, or have not ended, when the server stops."""
    message = "the server is shutting down"
    return ApiError(503, message, type="server_error", code="shutting_down", headers={"Retry-After": "5"})


async def read_body(request: Request, limit: int, gate: Gate) -> Any:
    """The JSON value of a request's body, which has at most `limit` bytes. Raises ApiError or QueueFullError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a web page can send any other kind to a server on its reader's machine
        raise ApiError(415, f"Content-Type: got {kind!r}, expected application/json", code="unsupported_media_type")
    too_long = ApiError(413, f"the body is longer than {limit} bytes", code="body_too_large")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and (len(length) > 18 or int(length) > limit):
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            async for chunk in request.stream():
                if len(body) + len(chunk) > limit:
                    raise too_long
                gate.take(len(chunk), limit)
                body += chunk
    except ClientDisconnect:
        raise ClientGone from None
    except TimeoutError:
        raise timed_out(BODY_TIMEOUT) from None
    finally:
        gate.give_back(len(body))
    try:
        return read_json(bytes(body))
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from None


async def until_gone(receive: Callable[[], Awaitable[Any]]) -> None:
    """Return when the client has disconnected. To be used once the body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """What `work` gives; it is cancelled, and ClientGone raised, when the client disconnects before."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(until_gone(request.receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await cancel(task, watch)


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel what is not done, and wait until it is."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
