"""Predicted outputs: drafts simulated against outputs that differ here and there."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proposer_views import view_of

from decodex.spec.prediction import PredictionProposer
from decodex.spec.proposer import TreeShape
from decodex.spec.verify import coupled_walk

PROMPT = [1, 2, 3]


def steps_of(output, prediction, depth=16, tree=None):
    """How many target steps the output takes, the target being certain of it."""
    proposer = PredictionProposer()
    num_done = num_steps = 0
    while num_done < len(output):
        view = view_of(
            PROMPT + output[:num_done],
            depth=depth,
            nodes=2 * depth if tree else depth,
            num_prompt_tokens=len(PROMPT),
            prediction=prediction,
            tree=tree,
        )
        draft = proposer.propose([view])[0]
        paths = () if draft is None else draft.paths
        depths = [0, *(len(path) for path in paths)]
        rows = [output[min(num_done + depth, len(output) - 1)] for depth in depths]
        num_done += len(coupled_walk(rows, draft)[0])
        num_steps += 1
    return num_steps


def edited(draw, tokens, every, num_removed, num_added):
    """The tokens with `num_removed` of each `every` taken out and `num_added` others put in their place."""
    out = []
    for start in range(0, len(tokens), every):
        place = draw.randrange(every - 8)
        part = tokens[start : start + every]
        out += part[:place] + [draw.randrange(1000, 2000) for _ in range(num_added)] + part[place + num_removed :]
    return out


def test_a_right_prediction_is_followed_to_its_end():
    output = [random.Random(0).randrange(50) for _ in range(170)]
    assert steps_of(output, output) == 10
    assert steps_of(output, output[:-4]) == 10 + 3


@pytest.mark.parametrize(
    ("num_removed", "num_added", "most"),
    [(1, 1, 1), (1, 2, 2.1), (2, 1, 2), (3, 1, 2), (2, 2, 2), (0, 1, 2), (0, 3, 4), (1, 0, 1), (4, 0, 1), (3, 3, 3)],
)
def test_steps_that_a_divergence_costs(num_removed, num_added, most):
    """Beyond those of a right prediction, for each of 20 edits; natural texts repeat tokens, so do these."""
    draw = random.Random(1)
    prediction = [min(int(draw.expovariate(0.02)), 999) for _ in range(20 * 60)]
    output = edited(draw, prediction, 60, num_removed, num_added)
    wasted = steps_of(output, prediction) - len(output) / 17
    assert wasted / 20 <= most + 0.7, "and what is left of a draft at a divergence"


def test_a_tree_has_the_second_likeliest_place():
    draw = random.Random(2)
    prediction = [draw.randrange(1000) for _ in range(20 * 60)]
    output = [edited(draw, prediction[i : i + 60], 60, i // 60 % 2, 1) for i in range(0, 1200, 60)]
    output = [token for part in output for token in part]  # a token put in, or one replaced, in turns
    chain, tree = steps_of(output, prediction), steps_of(output, prediction, tree=TreeShape())
    assert tree <= chain - 10
    assert steps_of(output, prediction, tree=TreeShape(widths=(1, 1))) == chain


def test_the_lengths_of_the_last_replacement_are_expected_again():
    """Each time three predicted tokens are one in the output: only the first time is a step lost to a guess."""
    draw = random.Random(3)
    prediction = [draw.randrange(1000) for _ in range(10 * 60)]
    output = edited(draw, prediction, 60, 3, 1)
    learned = steps_of(output, prediction)
    apart = sum(steps_of(output[i : i + 58], prediction[i // 58 * 60 :][:60]) for i in range(0, len(output), 58))
    assert learned <= apart - 5


def test_a_part_that_moved_is_found_elsewhere():
    draw = random.Random(4)
    parts = [[draw.randrange(1000) for _ in range(100)] for _ in range(4)]
    prediction = [token for part in parts for token in part]
    output = parts[2] + parts[0] + parts[3] + parts[1]
    assert steps_of(output, prediction) <= len(output) / 17 + 4 * 6


def test_a_long_insertion_is_passed():
    draw = random.Random(6)
    prediction = [draw.randrange(1000) for _ in range(200)]
    output = prediction[:100] + [draw.randrange(1000, 2000) for _ in range(300)] + prediction[100:]
    assert steps_of(output, prediction) <= 300 + 200 / 17 + 6


class Counted(list):
    """Counts what is read."""

    num_read = 0

    def __getitem__(self, index):
        self.num_read += 1
        return super().__getitem__(index)


def test_a_wrong_prediction_costs_the_same_for_each_token():
    """However far the output is from the prediction, and however often the two have a token in common."""
    counts = []
    for size in (1000, 4000):
        text = Counted(PROMPT + [random.Random(size).randrange(3) for _ in range(size)])
        view = view_of(text, num_prompt_tokens=3, prediction=[0, 1, 2, 2, 1, 0] * 200)
        PredictionProposer().propose([view])
        counts.append(text.num_read / size)
    assert counts[1] < 1.3 * counts[0]


def test_a_wrong_prediction_is_given_up():
    draw = random.Random(5)
    proposer = PredictionProposer()
    text = PROMPT + [draw.randrange(1000) for _ in range(100)]
    view = view_of(text, num_prompt_tokens=3, prediction=range(1000, 1200))
    assert proposer.propose([view]) == [None]
    assert proposer.propose([view_of(PROMPT, num_prompt_tokens=3)]) == [None], "no prediction"


@settings(max_examples=60)
@given(st.data())
def test_a_new_proposer_says_the_same(data):
    """What is kept of a sequence is a cache; drafted tokens are not kept at all."""
    tokens = st.lists(st.integers(0, 4), max_size=12)
    prediction = data.draw(st.lists(st.integers(0, 4), max_size=30))
    kept = PredictionProposer()
    output = []
    for _ in range(5):
        if data.draw(st.booleans()) or not output:
            start = data.draw(st.integers(0, max(len(prediction) - 1, 0)))
            output = output + data.draw(tokens) + prediction[start : start + data.draw(st.integers(0, 6))]
        else:
            output = output[: data.draw(st.integers(0, len(output) - 1))]
        drafted = data.draw(st.one_of(st.just([]), tokens))
        view = view_of(PROMPT + output, num_prompt_tokens=3, prediction=prediction)
        ours, fresh = (one.propose_after(view, drafted) for one in (kept, PredictionProposer()))
        longer = view_of(PROMPT + output + drafted, num_prompt_tokens=3, prediction=prediction)
        read = PredictionProposer().propose([longer])[0]
        assert (ours and ours.token_ids) == (fresh and fresh.token_ids) == (read and read.token_ids)
        assert ours is None or (len(ours) <= 8 and set(ours.sources) == {"prediction"})
