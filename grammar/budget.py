"""finish_within_budget: near the last tokens, the mask leaves only what can still be brought to an end in time.

The steering is a matcher around a matcher that also counts the remaining tokens. Its masks are a function of the
tokens so far and of `max_tokens`, whatever was drafted and rolled back in between. Three zones, by the remaining
tokens r and the length d of a known completion:

- far (r is above the horizon): nothing is computed, the mask is the inner one;
- near: a completion is known at every token; where r - d is small, tokens that open something are legal only where
  a completion after them was found;
- close (r <= d + a margin): the known completion's next token, and what provably keeps to it; where few tokens are
  legal (an enum, a choice), all after which a completion was found.
"""

from __future__ import annotations

import numpy as np

from decodex.grammar.completion import search_of
from decodex.grammar.matcher import MaskRow, Matcher
from decodex.grammar.vocabulary import GrammarVocabulary

__all__ = ["BudgetSteering"]

_MARGIN = 16  # tokens before the last possible moment at which the way out is taken
_MIN_HORIZON = 64
_MAX_CHECKED = 8  # tokens of one mask whose completion is looked for
_SEARCH_NODES = 12  # of such a look
_FIRST_NODES = 400  # of the look at the start
_PLAN_NODES = 200  # of a look for the way out itself
_RETRY = 16  # tokens after which a look that found nothing is taken again
_MAX_PLAN = 2048  # tokens
_OPENING, _CLOSING = b"{[(", b"}])"


class BudgetSteering:
    """A matcher whose text can be completed within `max_tokens`; `num_needed` tells whether that can be promised."""

    def __init__(self, matcher: Matcher, vocabulary: GrammarVocabulary, max_tokens: int) -> None:
        self._inner = matcher
        self._vocabulary = vocabulary
        self._search = search_of(vocabulary)
        self._remaining = max_tokens
        self._depths = [0]  # per accepted token and at the start: signs that were opened and not closed
        first = self._search.shortest(matcher, _MAX_PLAN, _FIRST_NODES)
        self.num_needed = None if first is None else len(first)
        self._step = max(len(first or ()), _MARGIN)  # about what one opening token can ask for
        self._plans: list[list[int] | None] = [first if self._is_near() else None]

    def fill(self, row: MaskRow) -> bool:
        """See Matcher.fill."""
        is_restricted = self._inner.fill(row)
        plan = self._plans[-1]
        if plan is None or self._remaining - len(plan) > 2 * self._step + _MARGIN // 2:
            return is_restricted  # no single token is expected to need more than that
        legal, num_legal = self._vocabulary.first_of(row & ~self._vocabulary.eos_bits, _MAX_CHECKED)
        if num_legal <= _MAX_CHECKED:
            kept = self._checked(legal, plan, _SEARCH_NODES)
        elif self._remaining <= len(plan) + _MARGIN:
            kept = self._checked(legal, plan, 0)
        else:
            opening, _ = self._vocabulary.first_of(row & self._search.opening_bits, _MAX_CHECKED)
            kept = self._checked(opening, plan, _SEARCH_NODES)
            row &= ~self._search.opening_bits | self._vocabulary.pack(kept)
            return True
        ends = self._vocabulary.eos_bits if self._inner.is_accepting else np.int32(0)
        row[:] = self._vocabulary.pack(kept) | ends
        return True

    def accept(self, token_id: int) -> bool:
        """See Matcher.accept."""
        if not self._inner.accept(token_id):
            return False
        was_near = self._is_near()
        self._remaining -= 1
        token = self._vocabulary.tokens[token_id]
        change = sum(byte in _OPENING for byte in token) - sum(byte in _CLOSING for byte in token)
        self._depths.append(max(0, self._depths[-1] + change))
        before = self._plans[-1]
        is_lost = was_near and before is None and self._remaining % _RETRY != 0
        if not self._is_near() or is_lost:
            self._plans.append(None)
        elif before and before[0] == token_id:
            self._plans.append(before[1:])
        else:
            self._plans.append(self._new_plan(before or []))
        return True

    def rollback(self, num_tokens: int) -> None:
        """See Matcher.rollback."""
        self._inner.rollback(num_tokens)
        if num_tokens:
            del self._plans[-num_tokens:], self._depths[-num_tokens:]
            self._remaining += num_tokens

    def fork(self) -> BudgetSteering:
        """See Matcher.fork."""
        twin = object.__new__(BudgetSteering)
        twin.__dict__.update(self.__dict__)
        twin._inner = self._inner.fork()
        twin._plans, twin._depths = list(self._plans), list(self._depths)
        return twin

    def forced_text(self) -> bytes:
        """See Matcher.forced_text."""
        return self._inner.forced_text()

    def forced_tokens(self) -> list[int]:
        """See Matcher.forced_tokens."""
        return self._inner.forced_tokens()

    @property
    def is_accepting(self) -> bool:
        """See Matcher.is_accepting."""
        return self._inner.is_accepting

    @property
    def is_terminated(self) -> bool:
        """See Matcher.is_terminated."""
        return self._inner.is_terminated

    def _is_near(self) -> bool:
        horizon = max(_MIN_HORIZON, 3 * self._step) + (1 + self._depths[-1]) * (self._step + 4)
        return self._remaining <= horizon

    def _checked(self, token_ids: list[int], plan: list[int], max_nodes: int) -> list[int]:
        """The plan's next token, and the first of these after which the rest can be completed in time."""
        kept = plan[:1]
        endings = self._search.endings(plan)
        for token_id in token_ids:
            fork = self._inner.fork()
            if token_id in kept or not fork.accept(token_id):
                continue
            if self._completion(fork, endings, self._remaining - 1, max_nodes) is not None:
                kept.append(token_id)
        return kept

    def _completion(self, position: Matcher, endings: list[list[int]], limit: int, max_nodes: int) -> list[int] | None:
        """A completion of at most `limit` tokens: one of the endings where that fits, else searched for."""
        if position.is_accepting:
            return []
        for tokens in endings:
            if self._search.completes(position, tokens, limit):
                return tokens
        return self._search.shortest(position, limit, max_nodes) if max_nodes else None

    def _new_plan(self, before: list[int]) -> list[int] | None:
        """In time where that is possible (whatever made the last token legal finds it again), else at all."""
        endings = self._search.endings(before)
        plan = self._completion(self._inner, endings, self._remaining, _PLAN_NODES)
        return plan if plan is not None else self._completion(self._inner, endings, _MAX_PLAN, _PLAN_NODES)
