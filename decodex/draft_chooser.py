"""Draft logits to draft tokens: the row pipeline again, so that a drafter guesses what the target would choose.

Under `coupled` a draft is drawn with the noise of its position, as the target's own token will be; the children of a
tree node are the top-m of (log q + G). Under `rejection` and `block` it is drawn from q with noise of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from decodex.batch import Rows
from decodex.features.custom import CustomProcessors
from decodex.features.feature import Feature
from decodex.kernels.sampling import SamplingRows, sample_rows, sample_scored, top_logprobs, truncate_
from decodex.request import Sequence as RequestSequence
from decodex.spec.target import Choices
from decodex.spec.verify import draw_proposals
from decodex.table import RequestTable

__all__ = ["DraftChooser"]


class DraftChooser:
    """A `spec.target.Chooser` over the sequences of one call (`begin` comes before it)."""

    def __init__(self, table: RequestTable, features: Sequence[Feature], vocab_size: int) -> None:
        """Custom processors are not asked about drafts: they may be slow, and only the target's rows count."""
        self.sequences: Sequence[RequestSequence] = ()
        self.vocab_size = vocab_size
        self._table = table
        self._features = [feature for feature in features if not isinstance(feature, CustomProcessors)]
        self._is_coupled = True
        self._acting: list[Feature] = []  # that some sequence of the call uses
        self._views: Sequence[int] = ()  # of the rows that _lines are for
        self._lines: SamplingRows | None = None
        self._map = _HostMap()

    def begin(self, sequences: Sequence[RequestSequence], is_coupled: bool = True) -> None:
        """The sequences that views of the next calls are of, and whether drafts take the target's noise."""
        self.sequences, self._is_coupled = sequences, is_coupled
        used: frozenset[Feature] = frozenset().union(*(self._table.used[seq.slot] for seq in sequences))
        self._acting = [feature for feature in self._features if feature in used] if used else []
        self._lines = None

    def choose(
        self,
        logits: Tensor,
        views: Sequence[int],
        paths: Sequence[tuple[int, ...]],
        width: int,
        token_map: Tensor | None,
    ) -> Choices:
        """See spec.target.Chooser."""
        sampling = self._sampling(views, paths, logits.device)
        names = self._names_of(token_map, sampling) if token_map is not None and logits.is_cpu else None
        if names is not None:  # nothing asks about the other tokens
            choices = _chosen(logits, sampling, token_map) if width == 1 else _best(logits, sampling, width, token_map)
            return Choices([[names[column] for column in columns] for columns in choices.token_ids], choices.scores)
        if token_map is not None:
            self._map.hold(token_map)
            num_tokens = max(self.vocab_size, self._map.num_tokens)
            logits = logits.new_full((logits.shape[0], num_tokens), -torch.inf).index_copy_(1, token_map, logits)
        logits = logits[:, : self.vocab_size]
        if self._acting:
            rows = self._rows(views, paths)
            for feature in self._acting:
                feature.apply(logits, rows)
        if not self._is_coupled:
            return self._drawn(logits, sampling, views, paths, width)
        return _chosen(logits, sampling) if width == 1 else _best(logits, sampling, width)

    def _names_of(self, token_map: Tensor, rows: SamplingRows) -> list[int] | None:
        """The tokens of the columns, where these are enough to choose from: the others are as good as -inf."""
        if self._acting or not self._is_coupled or rows.rare is not None:
            return None
        self._map.hold(token_map)
        is_enough = self._map.is_ascending and self._map.num_tokens <= self.vocab_size
        return self._map.names if is_enough else None

    def _sampling(self, views: Sequence[int], paths: Sequence[tuple[int, ...]], device: torch.device) -> SamplingRows:
        """The rows' parameters, looked up once for levels of the same views."""
        positions = torch.tensor(self._positions(views, paths), device=device)
        if self._lines is None or views != self._views:
            slots = torch.tensor([self.sequences[view].slot for view in views])
            self._lines, self._views = self._table.params.rows(slots, positions, device), views
        return self._lines._replace(positions=positions)

    def _positions(self, views: Sequence[int], paths: Sequence[tuple[int, ...]]) -> list[int]:
        return [len(self.sequences[view].token_ids) + len(path) for view, path in zip(views, paths, strict=True)]

    def _rows(self, views: Sequence[int], paths: Sequence[tuple[int, ...]]) -> Rows:
        sequences = [self.sequences[view] for view in views]
        positions = self._positions(views, paths)
        slots = [seq.slot for seq in sequences]
        return Rows(
            slots=torch.tensor(slots, dtype=torch.int64),
            positions=torch.tensor(positions, dtype=torch.int64),
            slots_host=slots,
            num_output_host=[p - seq.num_prompt_tokens for p, seq in zip(positions, sequences, strict=True)],
            ancestors=list(paths),
            sequences=sequences,
        )

    def _drawn(
        self, logits: Tensor, rows: SamplingRows, views: Sequence[int], paths: Sequence[tuple[int, ...]], width: int
    ) -> Choices:
        laws = torch.softmax(truncate_(logits, rows), dim=1).nan_to_num_(0.0)  # a row without a token has no law
        windows = torch.tensor([len(self.sequences[view].token_ids) for view in views], device=logits.device)
        seen: Counter[tuple[int, int]] = Counter()  # rows of a window at one position have streams of their own
        siblings = []
        for view, path in zip(views, paths, strict=True):
            siblings.append(seen[view, len(path)])
            seen[view, len(path)] += 1
        places = torch.tensor(siblings, dtype=torch.int64, device=logits.device)
        drawn = draw_proposals(laws, rows.seeds, rows.positions, windows, width, places)
        scores = laws.gather(1, drawn.clamp(min=0)).tolist()
        kept = [[token for token in tokens if token >= 0] for tokens in drawn.tolist()]
        return Choices(kept, [row[: len(tokens)] for row, tokens in zip(scores, kept, strict=True)], laws)


class _HostMap:
    """A token map on the host: there is one head, and so one map."""

    def __init__(self) -> None:
        self._token_map: Tensor | None = None
        self.names: list[int] = []  # [V_d] target ids
        self.is_ascending = False
        self.num_tokens = 0  # above the largest of them

    def hold(self, token_map: Tensor) -> None:
        """Fill in the fields, unless they are this map's already."""
        if token_map is not self._token_map:
            self._token_map, self.names = token_map, token_map.tolist()
            self.is_ascending = all(low < high for low, high in pairwise(self.names))
            self.num_tokens = max(self.names) + 1


def _chosen(logits: Tensor, rows: SamplingRows, ids: Tensor | None = None) -> Choices:
    """The one column that the target's own step would choose from these logits."""
    columns, log_probs = sample_scored(logits, rows, ids)
    found = list(zip(columns.tolist(), log_probs.tolist(), strict=True))
    return Choices([[i] if i >= 0 else [] for i, _ in found], [[math.exp(s)] if i >= 0 else [] for i, s in found])


def _best(logits: Tensor, rows: SamplingRows, width: int, ids: Tensor | None = None) -> Choices:
    """The first few columns of the order in which the target's step would choose; greedy rows by their logits."""
    is_greedy = rows.temperature == 0
    kept = torch.where(is_greedy[:, None], logits, truncate_(logits.clone(), rows))
    best = top_logprobs(kept, 1)
    log_mass = best.values[:, 0] - kept.gather(1, best.ids)[:, 0]  # minus it
    # what is kept is divided by T already: the draw alone is left, again and again without those that were drawn
    off = torch.ones_like(rows.top_p)
    draw = rows._replace(temperature=(~is_greedy).float(), top_k=torch.zeros_like(rows.top_k), top_p=off, min_p=off * 0)
    draw = draw._replace(rare=None)
    token_ids: list[list[int]] = [[] for _ in range(len(kept))]
    scores: list[list[float]] = [[] for _ in range(len(kept))]
    for _ in range(min(width, kept.shape[1])):
        tokens = sample_rows(kept, draw, ids)
        places = tokens.clamp(min=0)[:, None]
        found = torch.exp(kept.gather(1, places)[:, 0] + log_mass)
        for row, (token, score) in enumerate(zip(tokens.tolist(), found.tolist(), strict=True)):
            if token >= 0:
                token_ids[row].append(token)
                scores[row].append(score)
        kept.scatter_(1, places, -torch.inf)
    return Choices(token_ids, scores)
