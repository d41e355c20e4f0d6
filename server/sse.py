"""Server-sent events: one for each commit, an error as an event of its own, [DONE] in the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from fastapi import Response
from starlette.types import Receive, Scope, Send

from decodex.server.errors import api_error
from decodex.server.json_text import as_json
from decodex.server.limits import ClientGone, cancel, until_gone

__all__ = ["DONE", "EventStream", "event"]

DONE = b"data: [DONE]\n\n"
SEND_TIMEOUT = 60.0  # seconds in which a client has to take an event
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def event(value: Any) -> bytes:
    """A value as an event."""
    return b"data: " + as_json(value) + b"\n\n"


class EventStream(Response):
    """Sends what a generator yields as it comes, until its end or until the client goes."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        close: Callable[[], None],
        *,
        end: bytes = DONE,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`close` is called in the end, however it comes; `end` follows the last event, errors included."""
        super().__init__(headers={**HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self._events = events
        self._close = close
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        pump = asyncio.ensure_future(self._pump(start, send))
        watch = asyncio.ensure_future(until_gone(receive))
        try:
            await asyncio.wait((pump, watch), return_when=asyncio.FIRST_COMPLETED)
            if pump.done():
                with contextlib.suppress(ClientGone):
                    pump.result()
        finally:
            await cancel(pump, watch)
            self._close()
            await self._events.aclose()

    async def _pump(self, start: dict[str, Any], send: Send) -> None:
        await send(start)

        async def write(body: bytes, more: bool = True) -> None:
            try:
                async with asyncio.timeout(SEND_TIMEOUT):
                    await send({"type": "http.response.body", "body": body, "more_body": more})
            except TimeoutError:
                raise ClientGone from None

        try:
            async for chunk in self._events:
                await write(chunk)
        except ClientGone:
            return
        except Exception as error:  # the status has been sent: the client gets it as an event
            await write(event(api_error(error).body))
        await write(self._end, more=False)
