"""Log-probabilities of rows as the output shows them: raw ones of the model's logits, processed ones after step 7."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from decodex.kernels.sampling import top_logprobs
from decodex.outputs import Logprob
from decodex.tokenizer import Tokenizer

__all__ = ["LogprobReader", "Wanted"]


@dataclass(frozen=True)
class Wanted:
    """What to report of one row: its chosen token, the `num_top` most likely ones (-1: all), and others by id."""

    token: int
    num_top: int
    token_ids: tuple[int, ...] = ()


class LogprobReader:
    """Reads rows of logits; token texts are kept, as the same ones come again and again."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._vocab_size = tokenizer.vocab_size
        self._text = lru_cache(maxsize=2 * self._vocab_size)(lambda token: tokenizer.decode([token], False))

    def read(self, logits: Tensor, wanted: Sequence[Wanted]) -> list[dict[int, Logprob]]:
        """One dictionary for each row of logits [W, V] fp32: the most likely first, then the chosen token and those
        asked for by id. The values of a row have the same bits whatever its batch mates."""
        if not wanted:
            return []
        most = min(self._vocab_size, logits.shape[1])
        counts = [most if item.num_top < 0 else min(item.num_top, most) for item in wanted]
        chosen = torch.tensor([item.token for item in wanted], device=logits.device)
        top = top_logprobs(logits, max(counts), chosen)
        assert top.ranks is not None
        rows = zip(top.values.tolist(), top.ids.tolist(), top.ranks.tolist(), strict=True)
        found = []
        for place, (values, ids, rank) in enumerate(rows):
            count, item = counts[place], wanted[place]
            entries = {
                token: Logprob(value, at + 1, self._text(token))
                for at, (token, value) in enumerate(zip(ids[:count], values[:count], strict=True))
            }
            entries.setdefault(ids[-1], Logprob(values[-1], rank, self._text(ids[-1])))
            missing = [token for token in item.token_ids if token not in entries]
            if missing:
                self._add(entries, logits[place], missing)
            found.append(entries)
        return found

    def _add(self, entries: dict[int, Logprob], row: Tensor, token_ids: list[int]) -> None:
        chosen = torch.tensor(token_ids, device=row.device)
        more = top_logprobs(row.expand(len(token_ids), len(row)), 0, chosen)
        assert more.ranks is not None
        for token, value, rank in zip(token_ids, more.values[:, 0].tolist(), more.ranks.tolist(), strict=True):
            entries[token] = Logprob(value, rank, self._text(token))
