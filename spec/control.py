"""Draft control: verify the draft rows that raise tokens per second, and draft only where some will (goodput).

With N sequences, T rows without drafts and survivals S (the products of acceptance along a node's path), the rows
to verify maximise (N + sum of the B largest S) / (draft cost + verify cost of T + B rows); the B nodes with the
largest S are closed under parents, because no node survives more often than its parent. B = 0 is a choice like any
other, per sequence too. Rows of prompts are paid for by what they are: only the time beyond theirs counts.

What is drafted and not verified still teaches: it is compared with the tokens that are emitted later, which is what
acceptance means for tokens that the drafts' law did not choose at random. So a proposer whose drafts are never taken
can come back, and costs only a `propose` now and then meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from decodex.spec.acceptance import MAX_DEPTH, AcceptanceHistory, ProposerAcceptance, shape_of
from decodex.spec.costs import CostModel, DraftCost
from decodex.spec.draft import ROOT, Draft

__all__ = ["Control"]

CAUTION = 0.85  # of a survival counts: estimates are noisy, the best of them flattered, and profiled costs no better
PATIENCE = 16  # drafts in a row of which nothing is taken before the proposer is asked less often
MODEL_PATIENCE = 4  # the same for a proposer that costs by depth, also where drafting is not expected to pay
DRAFT_SECONDS = 4e-5  # of proposing, choosing and observing, for one sequence: what a draft must be expected to save
MAX_WAIT = 64  # steps between drafts that are not taken, at most
EXPLORE_EVERY = 16  # calls to a proposer that costs by depth, after which one is asked for a token more
LOOK_AHEAD = 4  # depths that are considered after the best so far: costs of rows rise in steps
PROBE_DEPTH = 2  # of drafts that cost by depth and are not expected to pay


class Control:
    """Chooses what is drafted and what of it is verified; keeps acceptance by sequence and proposer.

    Each step: `begin`, `depth_limits` for each proposer, `propose`, one `select`, the target's step, and then `observe`
    for each sequence.
    """

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._shared: dict[str, ProposerAcceptance] = {}
        self._histories: dict[int, dict[str, AcceptanceHistory]] = {}
        self._shadows: dict[int, tuple[Draft, int]] = {}  # an unverified rest of a draft, and the node reached in it
        self._context = 0.0
        self._num_calls: Counter[str] = Counter()  # of `depth_limits`, by proposer
        self._num_idle: Counter[str] = Counter()  # of these, since the last in which drafting was expected to pay

    def begin(self, context: float) -> None:
        """A step: the sequences that decode next have so many tokens on average."""
        self._context = context

    def depth_limits(
        self, name: str, keys: Sequence[int], max_depths: Sequence[int], num_sequences: int = 0
    ) -> list[int]:
        """How deep the proposer `name` is to draft for each decoding sequence, at most max_depths[i]; 0 is not at all.

        `num_sequences`: how many decode, where these are not all. A proposer that costs the same at any depth drafts
        fully. One that costs by depth drafts as deep as pays for all sequences together. Either is asked less and less
        often while nothing of its drafts is taken.
        """
        self._num_calls[name] += 1
        num_calls, cost = self._num_calls[name], self._costs.draft(name)
        histories = [self._history(key, name) for key in keys]
        limits = [  # calls are counted for all, so that sequences that wait are served together
            0 if num_calls % history.wait else depth for history, depth in zip(histories, max_depths)
        ]
        self._num_idle[name] += 1
        if not cost.grows or not any(limits):
            return limits
        paying = self._paying_depths(cost, histories, limits, max(num_sequences, len(keys)))
        if any(paying):
            self._num_idle[name] = 0
        for history, limit, depth in zip(histories, limits, paying):
            history.is_probed = limit > 0 and depth == 0
            if history.is_probed:
                history.note_idle(MODEL_PATIENCE)
        deeper = num_calls % EXPLORE_EVERY == 0  # lest a few bad drafts settle how deep is tried
        return [min(limit, depth + deeper if depth else PROBE_DEPTH) for limit, depth in zip(limits, paying)]

    def num_idle(self, name: str) -> int:
        """For how many calls of `depth_limits` drafts of a proposer that costs by depth were not expected to pay."""
        return self._num_idle[name]

    def prefers(
        self, name: str, keys: Sequence[int], drafts: Sequence[Draft], max_depths: Sequence[int], num_sequences: int
    ) -> list[bool]:
        """Whether a draft of the proposer `name`, which costs by depth, is expected to save more than this other one.

        Of `num_sequences` that decode. What others do is not looked at: a row costs what it does where all draft one.
        """
        size, cost = max(num_sequences, 1), self._costs.draft(name)
        table = self._table(2 * size)
        token_seconds, row_seconds = table[size] / size, (table[2 * size] - table[size]) / size
        preferred = []
        for key, draft, max_depth in zip(keys, drafts, max_depths):
            known = sum(max(CAUTION * s * token_seconds - row_seconds, 0) for s in self.survivals(key, draft))
            history, survival, saved, most = self._history(key, name), CAUTION, 0.0, 0.0
            for depth in range(max_depth):
                survival *= history.estimate(min(depth, MAX_DEPTH - 1))
                saved += survival * token_seconds - row_seconds - cost.seconds(size, 1) / size
                most = max(most, saved)
            preferred.append(most > known)
        return preferred

    def watch(self, key: int, draft: Draft) -> None:
        """Learn from a draft of this sequence that is not verified."""
        self._shadows[key] = (draft, ROOT)

    def select(
        self, keys: Sequence[int], drafts: Sequence[Draft | None], num_sequences: int, num_other_rows: int = 0
    ) -> list[Draft | None]:
        """What is verified of each draft, in a step of `num_sequences` decoding sequences (also those without one).

        `num_other_rows`: of prompts, and of drafts that are not chosen here. A draft with laws (drawn at random and
        verified by a ratio) is cut by what earlier steps taught alone: a cut that looks at the tokens drawn would
        change the output's law.
        """
        if not any(drafts):
            return [None] * len(drafts)
        chosen, gains = self._chosen(keys, drafts, num_sequences, num_other_rows)
        for key, draft, gain in zip(keys, drafts, gains):
            if draft:
                self._note(key, draft, gain > DRAFT_SECONDS)
        return chosen

    def cut(
        self, keys: Sequence[int], drafts: Sequence[Draft | None], num_sequences: int, num_other_rows: int
    ) -> list[Draft | None]:
        """What is still verified of selected drafts, in a step that turned out to have these other rows."""
        return self._chosen(keys, drafts, num_sequences, num_other_rows)[0]

    def _chosen(
        self, keys: Sequence[int], drafts: Sequence[Draft | None], num_sequences: int, num_other_rows: int
    ) -> tuple[list[Draft | None], list[float]]:
        """What is verified of each draft, and the seconds that it saves."""
        for shared in self._shared.values():
            shared.refresh()
        nodes: list[tuple[float, int, int]] = []  # (-survival, sequence, node)
        depths: dict[str, list[int]] = {}  # by proposer, of its drafts
        for index, (key, draft) in enumerate(zip(keys, drafts)):
            if draft:
                nodes += [(-CAUTION * s, index, node) for node, s in enumerate(self.survivals(key, draft))]
                shape = shape_of(draft.parents, draft.sources)
                depths.setdefault(shape.places[0].source, []).append(shape.depth)
        nodes.sort()
        drafting = sum(self._costs.draft(name).seconds(len(deep), max(deep)) for name, deep in depths.items())
        size, goodput = self._best([-node[0] for node in nodes], num_sequences, num_other_rows, drafting)
        num_plain = num_sequences + num_other_rows
        seconds = self._table(num_plain + size)
        row_seconds = (seconds[num_plain + size] - seconds[num_plain]) / max(size, 1)
        kept: list[list[int]] = [[] for _ in drafts]
        gains = [0.0] * len(drafts)  # seconds that a sequence's rows save
        for survival, index, node in nodes[:size]:
            kept[index].append(node)
            gains[index] += -survival / goodput - row_seconds
        return [draft.kept(sorted(nodes)) if draft else None for draft, nodes in zip(drafts, kept)], gains

    def survivals(self, key: int, draft: Draft) -> list[float]:
        """For each node, the estimated probability that it is accepted; never above its parent's."""
        has_confidences = bool(draft.confidences) and draft.laws is None
        histories = {source: self._history(key, source) for source in set(draft.sources) or {""}}
        survivals: list[float] = []
        for node, (source, depth, rank) in enumerate(shape_of(draft.parents, draft.sources).places):
            estimate = histories[source].estimate(depth, rank, draft.confidences[node] if has_confidences else None)
            parent = draft.parents[node]
            survivals.append(estimate * survivals[parent] if parent != ROOT else estimate)
        return survivals

    def observe(self, key: int, draft: Draft | None, emitted: Sequence[int]) -> None:
        """Learn from a step of this sequence: `draft` as proposed for it, before `select`, and the tokens emitted.

        Of a draft with laws, pass what was verified.
        """
        shadow = self._shadows.pop(key, None)
        if shadow is not None and (reached := self._walk(key, *shadow, emitted)) is not None:
            self._shadows[key] = (shadow[0], reached)
        if draft is None:
            return
        reached = self._walk(key, draft, ROOT, emitted)
        if reached is not None and draft.laws is None:
            self._shadows.setdefault(key, (draft, reached))

    def forget(self, key: int) -> None:
        """The sequence is over; a key that is not known is fine."""
        self._histories.pop(key, None)
        self._shadows.pop(key, None)

    def _table(self, max_rows: int) -> Sequence[float]:
        return self._costs.table(max_rows, self._context)

    def _history(self, key: int, name: str) -> AcceptanceHistory:
        histories = self._histories.get(key)
        if histories is None:
            histories = self._histories[key] = {}
        history = histories.get(name)
        if history is None:
            shared = self._shared.setdefault(name, ProposerAcceptance())
            history = histories[name] = AcceptanceHistory(shared, MAX_WAIT)
        return history

    def _note(self, key: int, draft: Draft, is_taken: bool) -> None:
        name = shape_of(draft.parents, draft.sources).places[0].source
        history = self._history(key, name)
        if history.is_probed:
            return  # that something of it is verified, now that it is there, does not say that drafting pays
        if is_taken:
            history.note_taken()
        else:
            history.note_idle(MODEL_PATIENCE if self._costs.draft(name).grows else PATIENCE)

    def _paying_depths(
        self, cost: DraftCost, histories: Sequence[AcceptanceHistory], limits: Sequence[int], num_sequences: int
    ) -> list[int]:
        """The depth to draft for each sequence that maximises goodput if drafts do as they did: one for all, or 0."""
        nodes: list[tuple[float, int, int]] = []  # (-survival, depth from 0, sequence)
        for index, (history, limit) in enumerate(zip(histories, limits)):
            survival = CAUTION
            for depth in range(limit):
                survival *= history.estimate(min(depth, MAX_DEPTH - 1))
                nodes.append((-survival, depth, index))
        nodes.sort()
        num_drafted = sum(limit > 0 for limit in limits)
        most = num_sequences / self._table(num_sequences)[num_sequences]
        best_depth, best_nodes = 0, nodes[:0]
        for depth in range(1, max(limits) + 1):
            within = [node for node in nodes if node[1] < depth]
            drafting = cost.seconds(num_drafted, depth)
            size, goodput = self._best([-node[0] for node in within], num_sequences, 0, drafting)
            if goodput > most:
                most, best_depth, best_nodes = goodput, depth, within[:size]
            elif depth > best_depth + LOOK_AHEAD:
                break
        takers = {index for _, _, index in best_nodes}
        return [best_depth if index in takers else 0 for index in range(len(histories))]

    def _best(
        self, survivals: Sequence[float], num_sequences: int, num_other_rows: int, drafting: float
    ) -> tuple[int, float]:
        """How many of the nodes, by falling survival, to verify, and the tokens per second that they promise."""
        seconds = self._table(num_sequences + num_other_rows + len(survivals))
        num_plain = num_sequences + num_other_rows
        fixed = drafting + seconds[num_sequences] - seconds[num_plain]
        tokens = float(num_sequences)
        size, goodput = 0, tokens / (drafting + seconds[num_sequences])
        for num_nodes, survival in enumerate(survivals, 1):
            tokens += survival
            here = tokens / (fixed + seconds[num_plain + num_nodes])
            if here > goodput:
                size, goodput = num_nodes, here
        return size, goodput

    def _walk(self, key: int, draft: Draft, node: int, emitted: Sequence[int]) -> int | None:
        """Follow emitted tokens down from `node`, counting the nodes tried; where it ends, if more may follow."""
        shape = shape_of(draft.parents, draft.sources)
        has_confidences = bool(draft.confidences) and draft.laws is None
        for token in emitted:
            reached = None
            for child in shape.children.get(node, ()):
                source, depth, rank = shape.places[child]
                confidence = draft.confidences[child] if has_confidences else None
                is_accepted = draft.token_ids[child] == token
                self._history(key, source).add(depth, rank, confidence, is_accepted)
                if is_accepted:
                    reached = child
                    break
            if reached is None:
                return None
            node = reached
        return node if node in shape.children else None
