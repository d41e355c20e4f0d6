"""The draft vocabulary: the tokens that the target's answers use most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from decodex.spec.train.errors import TrainingError

__all__ = ["draft_vocabulary"]


def draft_vocabulary(answers: Iterable[Sequence[int]], size: int, vocab_size: int) -> tuple[list[int], float]:
    """The `size` most frequent token ids of the answers, ascending, and the share of the answers' tokens that they are.

    Ties go to the lower id; where fewer tokens occur, the lowest ids that don't occur fill up.
    """
    if size > vocab_size:
        raise TrainingError(f"draft_vocab_size: got {size}, the target has {vocab_size} tokens")
    counts: Counter[int] = Counter()
    for answer in answers:
        counts.update(answer)
    order = sorted(counts, key=lambda token: (-counts[token], token))[:size]
    chosen = set(order)
    for token in range(vocab_size):
        if len(chosen) == size:
            break
        chosen.add(token)
    total = sum(counts.values())
    return sorted(chosen), sum(counts[token] for token in order) / total if total else 0.0
