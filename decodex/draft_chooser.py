"""Draft logits to draft tokens: the row pipeline again, so that a drafter guesses what the target would choose.

Under `coupled` a draft is drawn with the noise of its position, as the target's own token will be; the children of a
tree node are the top-m of (log q + G). Under `rejection` and `block` it is drawn from q with noise of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from decodex.batch import Rows
from decodex.features.custom import CustomProcessors
from decodex.features.feature import Feature
from decodex.kernels.sampling import SamplingRows, sample_rows, top_logprobs, truncate_
from decodex.request import Sequence as RequestSequence
from decodex.spec.target import Choices
from decodex.spec.verify import draw_proposals
from decodex.table import RequestTable

__all__ = ["DraftChooser"]


class DraftChooser:
    """A `spec.target.Chooser` over the sequences of one call (`sequences` and `is_coupled` are set before it)."""

    def __init__(self, table: RequestTable, features: Sequence[Feature], vocab_size: int) -> None:
        """Custom processors are not asked about drafts: they may be slow, and only the target's rows count."""
        self.sequences: Sequence[RequestSequence] = ()
        self.is_coupled = True
        self._table = table
        self._features = [feature for feature in features if not isinstance(feature, CustomProcessors)]
        self.vocab_size = vocab_size

    def choose(
        self,
        logits: Tensor,
        views: Sequence[int],
        paths: Sequence[tuple[int, ...]],
        width: int,
        token_map: Tensor | None,
    ) -> Choices:
        """See spec.target.Chooser."""
        if token_map is not None:
            narrow = logits
            logits = narrow.new_full((narrow.shape[0], self.vocab_size), -torch.inf)
            logits[:, token_map] = narrow
        logits = logits[:, : self.vocab_size]
        rows = self._rows(views, paths)
        for feature in self._features:
            feature.apply(logits, rows)
        sampling = self._table.params.rows(rows.slots, rows.positions, logits.device)
        if not self.is_coupled:
            return self._drawn(logits, sampling, views, paths, width)
        if width == 1:
            return _chosen(logits, sampling)
        return _best(logits, sampling, width)

    def _rows(self, views: Sequence[int], paths: Sequence[tuple[int, ...]]) -> Rows:
        sequences = [self.sequences[view] for view in views]
        positions = [len(seq.token_ids) + len(path) for seq, path in zip(sequences, paths, strict=True)]
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


def _chosen(logits: Tensor, rows: SamplingRows) -> Choices:
    """The one token that the target's own step would choose from these logits."""
    tokens = sample_rows(logits, rows)
    scores = top_logprobs(logits, 0, tokens.clamp(min=0)).values[:, 0].exp().nan_to_num_(0.0).tolist()
    ids = tokens.tolist()
    return Choices([[i] if i >= 0 else [] for i in ids], [[s] if i >= 0 else [] for i, s in zip(ids, scores)])


def _best(logits: Tensor, rows: SamplingRows, width: int) -> Choices:
    """The first few of the order in which the target's step would choose; greedy rows by their logits."""
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
        tokens = sample_rows(kept, draw)
        places = tokens.clamp(min=0)[:, None]
        found = torch.exp(kept.gather(1, places)[:, 0] + log_mass)
        for row, (token, score) in enumerate(zip(tokens.tolist(), found.tolist(), strict=True)):
            if token >= 0:
                token_ids[row].append(token)
                scores[row].append(score)
        kept.scatter_(1, places, -torch.inf)
    return Choices(token_ids, scores)
