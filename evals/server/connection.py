"""HTTP over plain sockets, many requests at a time in one thread: a client that costs next to nothing.

Nothing is read into the bytes while they come; `Exchange` takes them apart afterwards.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["MAX_READ", "Exchange", "exchange_all", "request_bytes"]

MAX_READ = 1 << 16


@dataclass
class Exchange:
    """One request, and what came back."""

    received: list[bytes] = field(default_factory=list)
    first_seconds: float | None = None  # until the first bytes of the response's body
    seconds: float = 0.0  # until its end

    @property
    def status(self) -> int:
        """The status code; 0 for none."""
        return int((b"".join(self.received).split(b" ", 2) + [b"0"])[1] or 0)

    @property
    def body(self) -> bytes:
        """The response's body, chunks put together."""
        head, _, rest = b"".join(self.received).partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" not in head.lower():
            return rest
        found = b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            found += rest[: int(size, 16)]
            rest = rest[int(size, 16) + 2 :]
        return found

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of a stream, which must have come to its end."""
        events = self.body.decode().split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""], events[-3:]
        return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def request_bytes(path: str, body: Any) -> bytes:
    """A request that asks for the connection to be closed."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: server\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(content) + content


def exchange_all(port: int, requests: Sequence[bytes]) -> list[Exchange]:
    """Send all requests at once, each on a connection of its own, and wait until all connections are closed."""
    exchanges = [Exchange() for _ in requests]
    start = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for request, exchange in zip(requests, exchanges, strict=True):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.sendall(request)
            selector.register(connection, selectors.EVENT_READ, exchange)
        while selector.get_map():
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                if not _receive(key.fileobj, key.data, start):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
    return exchanges


def _receive(connection: socket.socket, exchange: Exchange, start: float) -> bool:
    """Take what has come; False at the end."""
    data = connection.recv(MAX_READ)
    now = time.perf_counter() - start
    if not data:
        exchange.seconds = now
        return False
    exchange.received.append(data)
    if exchange.first_seconds is None and not data.endswith(b"\r\n\r\n"):  # not the head alone
        exchange.first_seconds = now
    return True
