"""The chunks of a stream: one event for each choice that a commit adds to, then the usage where it was asked for."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from decodex.outputs import CompletionOutput, RequestOutput
from decodex.server.completion_request import StreamOptions
from decodex.server.generation import Generation
from decodex.server.pieces import Piece, Progress
from decodex.server.sse import event

__all__ = ["Reply", "chunks"]


class Reply(Protocol):
    """What an endpoint makes of outputs."""

    def chunk_head(self, output: RequestOutput) -> dict[str, Any]:
        """What all chunks say."""

    def chunk_choice(
        self, place: int, output: RequestOutput, choice: CompletionOutput, piece: Piece, is_first: bool
    ) -> dict[str, Any] | None:
        """What a piece adds; None if that is nothing yet."""

    def usage(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """The tokens used so far."""


async def chunks(
    first: tuple[int, RequestOutput], generation: Generation, reply: Reply, options: StreamOptions
) -> AsyncGenerator[bytes]:
    """The events of a generation whose first output is known."""
    progress: dict[tuple[int, int], Progress] = {}
    begun: set[tuple[int, int]] = set()
    item: tuple[int, RequestOutput] | None = first
    head = reply.chunk_head(first[1])
    while item is not None:
        place, output = item
        for choice in output.outputs:
            known = (place, choice.index)
            piece = progress.setdefault(known, Progress()).advance(choice)
            if piece is None:
                continue
            shown = reply.chunk_choice(place, output, choice, piece, known not in begun)
            begun.add(known)
            if shown is None:
                continue
            chunk = {**head, "choices": [shown]}
            if options.continuous_usage_stats:
                chunk["usage"] = reply.usage(generation.newest)
            elif options.include_usage:
                chunk["usage"] = None
            yield event(chunk)
        item = await generation.next()
    if options.include_usage:
        yield event({**head, "choices": [], "usage": reply.usage(generation.newest)})
