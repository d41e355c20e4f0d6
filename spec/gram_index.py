"""Where the n-grams of one growing text ended before: incremental, so that a call costs what its new tokens cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["GramIndex", "common_suffix"]


class GramIndex:
    """For each gram size, a chain through the places where a gram ended, the latest first.

    Ends are exclusive: the gram of size s that ends at e is text[e - s : e]. Owned by a proposer, one a sequence; it
    may be dropped at any time.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        self.num_indexed = 0  # grams that end at or before this place are indexed
        self._latest: dict[tuple[int, ...], int] = {}
        self._earlier: list[list[int]] = [[0] for _ in sizes]  # by size: end -> the end before with the same gram, or 0

    def grow(self, token_ids: Sequence[int], end: int) -> None:
        """Index the grams of the text that end at or before `end`; the text indexed so far is a prefix of it."""
        start = self.num_indexed
        if end <= start:
            return
        latest = self._latest
        for size, earlier in zip(self.sizes, self._earlier):
            first = max(start + 1, size)  # end of the first new gram
            earlier.extend([0] * min(first - start - 1, end - start))
            window = token_ids[first - size : end]
            is_one = len(window) == size  # most calls: one new token
            for stop, gram in enumerate([tuple(window)] if is_one else zip(*[window[i:] for i in range(size)]), first):
                earlier.append(latest.get(gram, 0))
                latest[gram] = stop
        self.num_indexed = end

    def ends(self, gram: tuple[int, ...]) -> Iterator[int]:
        """Where this gram (of one of the sizes) ended, the latest first."""
        end = self._latest.get(gram, 0)
        if end:
            earlier = self._earlier[self.sizes.index(len(gram))]
            while end:
                yield end
                end = earlier[end]


def common_suffix(text: Sequence[int], end: int, other: Sequence[int], other_end: int, limit: int) -> int:
    """How many tokens before text[end] and before other[other_end] are the same, at most `limit`."""
    limit = min(limit, end, other_end)
    size = 0
    while size < limit and text[end - 1 - size] == other[other_end - 1 - size]:
        size += 1
    return size
