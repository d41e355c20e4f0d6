"""One choice's place in its compiled grammar. The sequence owns it; committed tokens alone advance it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from decodex.errors import RequestError
from decodex.grammar.budget import BudgetSteering
from decodex.grammar.draft import fill_draft, forced_draft, legal_nodes
from decodex.grammar.errors import MatcherError
from decodex.grammar.matcher import CompiledGrammar, MaskRow, Matcher
from decodex.grammar.vocabulary import GrammarVocabulary
from decodex.structured_outputs import FIELD

__all__ = ["ConstrainedText", "Grammar"]

NOTHING = -1  # the parent of a path's first token in `fill_draft`


@contextlib.contextmanager
def _own_error() -> Iterator[None]:
    """Whatever a library raises, a panic of compiled code too, is a MatcherError: one request's own."""
    try:
        yield
    except (MatcherError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise MatcherError(f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Grammar:
    """A compiled grammar with what the engine itself lets through: shared by the choices of a request."""

    compiled: CompiledGrammar
    vocabulary: GrammarVocabulary
    allowed: MaskRow  # [num_words] text, ends, and the special tokens that a structural tag names
    stops: MaskRow | None = None  # [num_words] stop tokens: legal wherever an end is
    is_steered: bool = False  # finish_within_budget

    def begin(self, max_tokens: int) -> ConstrainedText:
        """A choice at its start. RequestError where it can't be brought to its end within `max_tokens`, and has to."""
        try:
            with _own_error():
                matcher: Matcher = self.compiled.matcher()
                steered = BudgetSteering(matcher, self.vocabulary, max_tokens) if self.is_steered else None
        except MatcherError as error:
            constraint = self.compiled.constraint
            expected = f"a constraint that {self.compiled.backend} can begin"
            raise RequestError(f"{FIELD}.{constraint.kind}", constraint.text, expected, str(error)) from error
        if steered is not None:
            if steered.num_needed is None:
                hint = "no way to the constraint's end was found: leave it out"
                raise RequestError(f"{FIELD}.finish_within_budget", True, "a constraint that has a short member", hint)
            if steered.num_needed > max_tokens:
                hint = f"{FIELD}.finish_within_budget asks for a complete output"
                raise RequestError("max_tokens", max_tokens, f"at least {steered.num_needed} here", hint)
        return ConstrainedText(self, matcher if steered is None else steered)


class ConstrainedText:
    """The matcher of one choice. After any steps, drafts and preemptions its state is that of a new one that has been
    given the committed tokens."""

    def __init__(self, grammar: Grammar, matcher: Matcher) -> None:
        self.grammar = grammar
        self._matcher = matcher

    def fork(self) -> ConstrainedText:
        """Another choice in the same place."""
        return ConstrainedText(self.grammar, self._matcher.fork())

    @property
    def is_finished_by_budget(self) -> bool:
        """Whether a text that has used all its tokens has been brought to its end by then."""
        return self.grammar.is_steered and self._matcher.is_accepting

    def push(self, token_id: int) -> bool:
        """Advance by a committed token that is no end; whether only the end can follow. Raises MatcherError."""
        with _own_error():
            if not self._matcher.accept(token_id):
                raise MatcherError(f"token {token_id} was chosen, and the grammar does not allow it")
            return self._matcher.is_terminated

    def end(self) -> None:
        """The end of sequence was chosen. Raises MatcherError where the text is not complete."""
        with _own_error():
            if not self._matcher.is_accepting:
                raise MatcherError("the end was chosen before the text was complete")

    def bytes_of(self, token_id: int) -> bytes:
        """What a token adds to the text."""
        return self.grammar.vocabulary.tokens[token_id]

    def fill(self, paths: Sequence[tuple[int, ...]], rows: MaskRow) -> None:
        """The masks of rows [R, num_words] after the committed tokens and the draft tokens paths[r]. Raises
        MatcherError."""
        with _own_error():
            if len(paths) == 1 and not paths[0]:
                if not self._matcher.fill(rows[0]):
                    rows[0] = -1
            else:
                self._fill_tree(paths, rows)
        rows &= self.grammar.allowed
        if self.grammar.stops is not None:
            may_end = (rows & self.grammar.vocabulary.eos_bits).any(axis=1)
            rows[may_end] |= self.grammar.stops

    def legal(self, token_ids: Sequence[int], parents: Sequence[int]) -> list[bool]:
        """Per draft node whether the grammar allows it and all above it. Raises MatcherError."""
        with _own_error():
            return legal_nodes(self._matcher, token_ids, parents)

    def forced_draft(self, token_ids: Sequence[int], draft: Sequence[int]) -> list[int]:
        """What the grammar forces after the committed tokens and these draft tokens; nothing where it fails."""
        try:
            with _own_error():
                return forced_draft(self._matcher, self.grammar.vocabulary, token_ids, draft)
        except MatcherError:
            return []  # a row of this sequence will say so

    def _fill_tree(self, paths: Sequence[tuple[int, ...]], rows: MaskRow) -> None:
        places: dict[tuple[int, ...], int] = {(): NOTHING}
        tokens: list[int] = []
        parents: list[int] = []
        for path in paths:
            for end in range(1, len(path) + 1):
                if path[:end] not in places:
                    places[path[:end]] = len(tokens)
                    tokens.append(path[end - 1])
                    parents.append(places[path[: end - 1]])
        masks = np.zeros((1 + len(tokens), rows.shape[1]), dtype=np.int32)
        fill_draft(self._matcher, tokens, parents, masks)
        rows[:] = masks[[1 + places[path] for path in paths]]
