"""The draft vocabulary is what the answers use most, whatever the order of the answers."""

from __future__ import annotations

import pytest

from decodex.spec.train.errors import TrainingError
from decodex.spec.train.vocabulary import draft_vocabulary


@pytest.mark.parametrize(
    ("answers", "size", "expected", "coverage"),
    [
        ([[7, 7, 7], [2, 2, 5]], 2, [2, 7], 5 / 6),
        ([[7, 7, 7], [2, 2, 5]], 3, [2, 5, 7], 1.0),
        ([[9, 3, 6, 3], [6, 9]], 2, [3, 6], 4 / 6),  # all twice: the lower ids
        ([[9]], 4, [0, 1, 2, 9], 1.0),  # too few occur: filled up
        ([[1, 0]], 4, [0, 1, 2, 3], 1.0),
        ([[4, 4]], 10, list(range(10)), 1.0),
        ([], 2, [0, 1], 0.0),
    ],
)
def test_the_most_frequent_tokens(answers: list[list[int]], size: int, expected: list[int], coverage: float) -> None:
    assert draft_vocabulary(answers, size, 10) == (expected, pytest.approx(coverage))
    assert draft_vocabulary(answers[::-1], size, 10)[0] == expected


def test_more_than_there_are_is_refused() -> None:
    with pytest.raises(TrainingError, match="draft_vocab_size: got 11, the target has 10 tokens"):
        draft_vocabulary([[1]], 11, 10)
