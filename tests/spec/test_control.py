"""Draft control: the best rows by enumeration, and simulated acceptance: it converges, comes back and costs nothing."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decodex.spec.acceptance import MAX_INHERITED_WAIT
from decodex.spec.control import CAUTION, MAX_WAIT, PATIENCE, Control
from decodex.spec.costs import CostModel, DraftClock, DraftCost
from decodex.spec.draft import ROOT, Draft

CHEAP_ROWS = CostModel.profiled({1: 0.014, 2: 0.015, 4: 0.017, 6: 0.019, 8: 0.044, 16: 0.044, 32: 0.102})
DEAR_ROWS = CostModel.profiled({1: 0.010, 2: 0.020})


def closed_subsets(draft):
    """Every set of nodes that has each node's parent, also the empty one."""
    for chosen in itertools.product([False, True], repeat=len(draft)):
        if all(not chosen[node] or parent == ROOT or chosen[parent] for node, parent in enumerate(draft.parents)):
            yield [node for node in range(len(draft)) if chosen[node]]


@st.composite
def trees(draw, max_nodes=5):
    size = draw(st.integers(1, max_nodes))
    return Draft(
        token_ids=tuple(range(size)),
        parents=tuple(draw(st.integers(ROOT, node - 1)) for node in range(size)),
        confidences=tuple(draw(st.floats(0, 1)) for _ in range(size)),
        sources=("suffix",) * size,
    )


@settings(max_examples=60)
@given(
    st.lists(st.none() | trees(), min_size=1, max_size=2),
    st.lists(st.floats(0.001, 0.02), min_size=6, max_size=6),
    st.integers(0, 2),
    st.integers(0, 3),
    st.floats(0, 0.01),
)
def test_no_choice_of_rows_is_better(drafts, increments, num_without, num_other_rows, drafting):
    """Against all closed subsets of two small trees, with costs by rows that rise in any way."""
    points = dict(zip((1, 2, 3, 5, 8, 16), itertools.accumulate(increments)))
    control = Control(CostModel.profiled(points, {"suffix": DraftCost(call=drafting)}))
    num_sequences = len(drafts) + num_without
    table = CostModel.profiled(points).table(64)
    plain = num_sequences + num_other_rows
    keys = list(range(len(drafts)))
    survivals = [[] if draft is None else control.survivals(key, draft) for key, draft in zip(keys, drafts)]

    def goodput(chosen):
        rows = sum(len(nodes) for nodes in chosen)
        tokens = num_sequences + CAUTION * sum(survivals[i][node] for i, nodes in enumerate(chosen) for node in nodes)
        seconds = table[num_sequences] + table[plain + rows] - table[plain]
        return tokens / (seconds + (drafting if any(drafts) else 0.0))

    choices = [[[]] if draft is None else list(closed_subsets(draft)) for draft in drafts]
    best = max(goodput(chosen) for chosen in itertools.product(*choices))
    selected = control.select(keys, drafts, num_sequences, num_other_rows)
    nodes = [[] if draft is None else list(draft.token_ids) for draft in selected]  # token i is node i
    assert all(draft is None or draft.kept(chosen) is not None or not chosen for draft, chosen in zip(drafts, nodes))
    assert goodput(nodes) == pytest.approx(best, rel=1e-9)


@dataclass
class Simulation:
    """A chain proposer whose tokens are right with a probability that depends on the step."""

    control: Control
    costs: CostModel
    num_sequences: int = 1
    depth: int = 6
    has_confidences: bool = False
    seconds: float = 0.0
    num_tokens: int = 0
    drafted: list[int] = field(default_factory=list)  # by step: tokens proposed
    verified: list[int] = field(default_factory=list)
    draw: random.Random = field(default_factory=lambda: random.Random(0))

    def run(self, num_steps, rate, name="suffix"):
        """`rate(depth from 0)`: of acceptance given that the parent was accepted."""
        keys = list(range(self.num_sequences))
        for _ in range(num_steps):
            limits = self.control.depth_limits(name, keys, [self.depth] * len(keys))
            drafts, rights = [], []
            for limit in limits:
                right = [self.draw.random() < rate(depth) for depth in range(self.depth)]
                rights.append((right + [False]).index(False))
                confidences = [rate(depth) for depth in range(limit)] if self.has_confidences else []
                tokens = [1 if is_right else 2 for is_right in right[:limit]]
                drafts.append(Draft.chain(tokens, name, confidences) if limit else None)
            selected = self.control.select(keys, drafts, len(keys))
            for key, draft, kept, num_right in zip(keys, drafts, selected, rights):
                num_accepted = min(num_right, len(kept) if kept else 0)
                self.control.observe(key, draft, [1] * (num_accepted + 1))
                self.num_tokens += num_accepted + 1
            num_rows = sum(len(kept) for kept in selected if kept)
            num_drafted = sum(limit > 0 for limit in limits)
            self.seconds += self.costs.draft(name).seconds(num_drafted, max(limits))
            self.seconds += self.costs.table(64)[len(keys) + num_rows]
            self.drafted.append(sum(limits))
            self.verified.append(num_rows)

    @property
    def speedup(self):
        """Over a step for each token of each sequence."""
        plain = self.costs.table(64)[self.num_sequences] / self.num_sequences
        return self.num_tokens * plain / self.seconds


def optimum(costs, rate, depth=6):
    """The best chain length for one sequence, and its speed-up."""
    tokens = [1.0]
    for node in range(depth):
        tokens.append(tokens[-1] + (tokens[-1] - (tokens[-2] if node else 0)) * rate(node))
    table = costs.table(depth + 1)
    speedups = [count * table[1] / table[1 + rows] for rows, count in enumerate(tokens)]
    return max(range(depth + 1), key=speedups.__getitem__), max(speedups)


@pytest.mark.parametrize("has_confidences", [False, True])
@pytest.mark.parametrize("level", [0.1, 0.3, 0.6, 0.95])
def test_lengths_converge_to_the_best(level, has_confidences):
    simulation = Simulation(Control(CHEAP_ROWS), CHEAP_ROWS, has_confidences=has_confidences)
    simulation.run(100, lambda depth: level)
    simulation.seconds, simulation.num_tokens = 0.0, 0
    simulation.run(600, lambda depth: level)
    size, best = optimum(CHEAP_ROWS, lambda depth: level)
    assert simulation.speedup >= max(0.93 * best, 0.985)
    assert abs(sum(simulation.verified[-300:]) / 300 - size) < 1.5


def test_estimates_follow_depths_and_requests():
    """One request accepts what another does not; a third that is new starts from what both saw."""
    control = Control(CHEAP_ROWS)
    draw = random.Random(0)
    chain = Draft.chain([1, 1, 1], "ngram")
    rates = {0: (0.9, 0.9, 0.9), 1: (0.4, 0.9, 0.1)}
    sums = {key: [0.0] * 3 for key in (0, 1, 2)}
    for step in range(400):
        for key, rate in rates.items():
            right = [draw.random() < r for r in rate]
            control.observe(key, chain, [1] * (right + [False]).index(False) + [2])
        control.select([0], [chain], 1)  # brings the shared rates up to date
        if step >= 200:
            sums = {key: [a + b for a, b in zip(sums[key], control.survivals(key, chain))] for key in sums}
    estimates = {key: [value / 200 for value in values] for key, values in sums.items()}
    assert estimates[0] == pytest.approx([0.9, 0.81, 0.73], abs=0.1)
    assert estimates[1] == pytest.approx([0.4, 0.36, 0.036], abs=0.1)
    assert estimates[1][0] < estimates[2][0] < estimates[0][0]


def test_confidences_are_calibrated():
    """A proposer that is half as often right as it says, and another one that tells nothing."""
    control = Control(CHEAP_ROWS)
    draw = random.Random(0)
    for step in range(400):
        confidence = draw.choice([0.3, 0.9])
        control.observe(step, Draft.chain([1], "a", [confidence]), [1 if draw.random() < confidence / 2 else 2])
        control.observe(step, Draft.chain([1], "b", [confidence]), [1 if draw.random() < 0.6 else 2])
    for name, expected in (("a", (0.15, 0.45)), ("b", (0.6, 0.6))):
        draft = [control.survivals(10_000, Draft.chain([1], name, [confidence]))[0] for confidence in (0.3, 0.9)]
        assert draft == pytest.approx(expected, abs=0.12)


@pytest.mark.parametrize("costs", [DEAR_ROWS, CostModel.profiled({1: 0.01, 2: 0.01}, {"head": DraftCost(level=0.004)})])
def test_what_never_pays_is_hardly_drafted(costs):
    name = "head" if costs.drafts else "suffix"
    simulation = Simulation(Control(costs), costs, num_sequences=4)
    simulation.run(1500, lambda depth: 0.1, name)
    assert simulation.speedup >= 0.985
    assert sum(drafted > 0 for drafted in simulation.drafted[-640:]) <= 640 // MAX_WAIT + 4
    assert name == "head" or sum(simulation.verified[-640:]) <= 10


def test_rows_that_cost_nothing_are_drafted_deeper():
    costs = CostModel.profiled({1: 0.01, 2: 0.01}, {"head": DraftCost(level=0.0008)})
    simulation = Simulation(Control(costs), costs)
    simulation.run(300, lambda depth: 0.9, "head")
    assert sum(simulation.drafted[-100:]) / 100 > 5
    assert simulation.speedup > 2.5


def test_short_requests_do_not_each_start_with_probes():
    """A head that does not pay: of requests of 50 tokens, only the first ones try it at once."""
    costs = CostModel.profiled({1: 0.01, 2: 0.01}, {"head": DraftCost(level=0.004)})
    control = Control(costs)
    num_drafted = []
    for key in range(40):
        num_drafted.append(0)
        for _ in range(50):
            [limit] = control.depth_limits("head", [key], [4])
            draft = Draft.chain([1] * limit, "head") if limit else None
            control.select([key], [draft], 1)
            control.observe(key, draft, [2])
            num_drafted[-1] += limit
        control.forget(key)
    assert sum(num_drafted[-20:]) / 20 <= 10  # tokens at 0.4 steps each


@pytest.mark.parametrize("name", ["suffix", "head"])
def test_a_request_comes_back(name):
    """Nothing is right for long, then nearly everything."""
    costs = CostModel.profiled({1: 0.010, 2: 0.0105, 8: 0.016, 16: 0.05}, {"head": DraftCost(level=0.001)})
    simulation = Simulation(Control(costs), costs)
    simulation.run(500, lambda depth: 0.0, name)
    assert simulation.verified[-100:].count(0) >= 95
    simulation.run(3 * MAX_WAIT, lambda depth: 0.97, name)
    assert all(simulation.verified[-20:])
    assert simulation.verified[-10:] == pytest.approx([6] * 10, abs=2)


def test_unverified_drafts_teach_what_would_have_been_accepted():
    """Rows are too dear to verify any, so all evidence is from tokens that plain steps emit."""
    costs = CostModel.profiled({1: 0.01, 2: 1.0})
    control = Control(costs)
    draft = Draft.chain([1, 1, 1, 2], "ngram")
    for _ in range(60):
        assert control.select([0], [draft], 1) == [None]
        control.observe(0, draft, [1])
    assert control.survivals(0, draft)[2] > 0.8
    assert control.survivals(0, draft)[3] / control.survivals(0, draft)[2] < 0.2


@pytest.mark.parametrize(
    ("guessed", "drafted", "level", "is_preferred"),
    [(0.2, 0.9, 0.0005, True), (0.9, 0.2, 0.0005, False), (0.2, 0.9, 0.02, False), (0.6, 0.6, 0.0005, False)],
)
def test_a_better_draft_is_preferred_if_it_is_worth_its_price(guessed, drafted, level, is_preferred):
    """Of two proposers that are right so often; at equal rates the draft that is there already is kept."""
    source = random.Random(1)
    control = Control(CostModel.profiled({1: 0.010, 2: 0.0105, 16: 0.016}, {"head": DraftCost(level=level)}))
    for _ in range(200):
        for name, rate in (("suffix", guessed), ("head", drafted)):
            right = [source.random() < rate for _ in range(4)]
            control.observe(0, Draft.chain([1 if each else 2 for each in right], name), [1] * 5)
        control.select([0], [Draft.chain([1], "suffix")], 1)
    assert control.prefers("head", [0], [Draft.chain([1] * 4, "suffix")], [4], 1) == [is_preferred]
    assert control.prefers("head", [0], [Draft.chain([1] * 4, "suffix")], [0], 1) == [False]
    assert control.prefers("head", [], [], [], 0) == []


def test_a_draft_that_gave_way_teaches():
    control = Control(CHEAP_ROWS)
    draft = Draft.chain([1, 1, 2], "suffix")
    for _ in range(60):
        control.watch(0, draft)
        control.observe(0, Draft.chain([1], "head"), [1])
        control.observe(0, None, [1, 1])
    control.select([0], [draft], 1)
    survivals = control.survivals(0, draft)
    assert survivals[1] > 0.9
    assert survivals[2] / survivals[1] < 0.1


def test_drafts_with_laws_are_cut_by_earlier_steps_alone():
    """The choice may not depend on the tokens that were drawn: not on confidences, which are of those tokens."""
    for confidences in [(0.01, 0.01), (0.99, 0.99), (0.01, 0.99)]:
        control = Control(CHEAP_ROWS)
        draft = Draft((1, 2), (ROOT, 0), confidences, ("eagle",) * 2, laws=torch.full((2, 3), 1 / 3))
        [selected] = control.select([0], [draft], 1)
        assert selected is not None
        assert control.survivals(0, draft) == pytest.approx([0.5, 0.25])


def test_sequences_are_chosen_apart():
    control = Control(CHEAP_ROWS)
    good, bad = Draft.chain([1] * 5, "ngram"), Draft.chain([2] * 5, "ngram")
    for _ in range(40):
        for key, draft in ((0, good), (1, bad)):
            control.observe(key, draft, [1] * 6)
    kept = control.select([0, 1], [good, bad], 2)
    assert len(kept[0]) >= 3
    assert kept[1] is None


def test_rows_of_prompts_do_not_make_drafts_look_cheap():
    """A step that a prompt makes slow is no reason to verify rows that cost more than they bring."""
    costs = CostModel.profiled({rows: 0.01 * rows for rows in (1, 8, 64)})
    control = Control(costs)
    draft = Draft.chain([1, 1], "ngram", [0.7, 0.7])
    assert control.select([0], [draft], 1, 0) == [None]
    assert control.select([0], [draft], 1, 50) == [None]


def test_patience_then_longer_and_longer_waits():
    control = Control(DEAR_ROWS)
    asked = []
    for step in range(1, 5 * MAX_WAIT):
        [limit] = control.depth_limits("ngram", [0], [4])
        if limit:
            asked.append(step)
            control.select([0], [Draft.chain([1], "ngram")], 1)
            control.observe(0, Draft.chain([1], "ngram"), [2])
    assert asked[:PATIENCE] == list(range(1, PATIENCE + 1))
    assert [b - a for a, b in itertools.pairwise(asked)][-2:] == [MAX_WAIT] * 2
    control.forget(0)
    control.forget(77)
    limits = [control.depth_limits("ngram", [0], [4]) for _ in range(MAX_INHERITED_WAIT)]
    assert limits.count([4]) == 1, "a new request does not wait as long"


def test_a_draft_that_saves_less_than_it_takes_to_choose_is_not_asked_for_long():
    """On a fast device a row more may be free, and a token one in a hundred times; Python is not that fast."""
    costs = CostModel.profiled({1: 0.001, 64: 0.001})
    simulation = Simulation(Control(costs), costs)
    simulation.run(1000, lambda depth: 0.01)
    assert sum(drafted > 0 for drafted in simulation.drafted[-320:]) <= 320 // MAX_WAIT + 40
    simulation.run(200, lambda depth: 0.9)
    assert all(simulation.drafted[-20:])


def test_costs_are_monotone_and_go_on_beyond_the_profile():
    costs = CostModel.profiled({4: 3.0, 1: 1.0, 2: 9.0, 8: 5.0}, {"a": DraftCost(1, 2, 3, 4)})
    assert costs.seconds == (1.0, 3.0, 3.0, 5.0)
    assert costs.table(12)[:13] == pytest.approx([1, 1, 3, 3, 3, 3.5, 4, 4.5, 5, 5.5, 6, 6.5, 7])
    assert costs.draft("a").seconds(num_views=2, depth=3) == 1 + 4 + 3 * (3 + 8)
    assert costs.draft("a").seconds(0, 3) == 0
    assert costs.draft("b").seconds(5, 5) == 0
    assert CostModel.profiled({4: 2.0}).table(8)[1:9] == pytest.approx([2, 2, 2, 2, 2.5, 3, 3.5, 4])


def test_the_clock_follows_what_calls_take():
    """By the number of sequences, up and down; a call that also wrote a prompt's KV counts for little."""
    clock = DraftClock()
    assert clock.cost(1) == DraftCost()
    clock.note(2, 0, 9.0)  # wrote KV only
    assert clock.cost(1) == DraftCost()
    clock.note(1, 4, 0.4)
    assert clock.cost(1).seconds(1, 4) == pytest.approx(0.4)
    assert clock.cost(4).level == pytest.approx(0.4), "rows are taken to cost as much as levels"
    for _ in range(40):
        clock.note(1, 2, 0.4)
    assert clock.cost(1).level == pytest.approx(0.2, rel=1e-3)
    clock.note(1, 2, 200.0)
    assert clock.cost(1).level < 0.25
    for _ in range(40):
        clock.note(1, 2, 0.1)
    assert clock.cost(1).level == pytest.approx(0.05, rel=1e-2)


def test_writing_kv_is_no_cost_of_drafts():
    clock = DraftClock()
    for _ in range(40):
        clock.note(1, 0, 0.3)
        clock.note(1, 2, 0.3 + 2 * 0.1)
        clock.note(1, 4, 0.3 + 4 * 0.1)
    assert clock.cost(1).level == pytest.approx(0.1)
    for _ in range(40):
        clock.note(1, 0, 5.0)  # slower than drafting was: a quarter of what drafts take is taken to be their own
    clock.note(1, 2, 0.4)
    assert 0.05 <= clock.cost(1).level < 0.1
