"""A grammar tried out before it is admitted: ambiguous ones keep a parser busy for ever longer with every token."""

from __future__ import annotations

import random
import time

from decodex.grammar.errors import ConstraintError, MatcherError
from decodex.grammar.matcher import CompiledGrammar
from decodex.grammar.vocabulary import GrammarVocabulary

__all__ = ["try_out"]

_MAX_TOKENS = 200  # of one walk
_MAX_SLOW = 3  # tokens that may take long, for a lexer is built on the way
_SLOW_SECONDS = 0.025  # of the thread's own time for one token: its mask and its acceptance
_TRIAL_SECONDS = 0.5  # of one walk
_SAMPLED = 16


def try_out(grammar: CompiledGrammar, vocabulary: GrammarVocabulary) -> None:
    """Refuse a grammar that takes long for single tokens, or more than its parser's limits, within a few hundred."""
    rng = random.Random(0)
    for is_long in (False, True):
        try:
            _walk(grammar, vocabulary, rng, is_long)
        except MatcherError as error:
            raise ConstraintError(f"the grammar is too ambiguous: after some tokens {error}") from None


def _walk(grammar: CompiledGrammar, vocabulary: GrammarVocabulary, rng: random.Random, is_long: bool) -> None:
    matcher = grammar.matcher()
    begun, num_slow = time.thread_time(), 0
    row = vocabulary.eos_bits.copy()
    for _ in range(_MAX_TOKENS):
        start = time.thread_time()
        matcher.fill(row)
        spent = time.thread_time() - start
        legal = vocabulary.unpack(row & vocabulary.text_bits)
        if not legal:
            return
        token = _chosen(legal, vocabulary.tokens, rng, is_long)
        start = time.thread_time()
        matcher.accept(token)
        now = time.thread_time()
        num_slow += spent + now - start > _SLOW_SECONDS
        if num_slow > _MAX_SLOW:
            raise ConstraintError("the grammar is too ambiguous: single tokens take too long to parse")
        if now - begun > _TRIAL_SECONDS and not num_slow:
            return


def _chosen(legal: list[int], tokens: list[bytes], rng: random.Random, is_long: bool) -> int:
    """A long token, or one whose first byte is as likely as any other (signs that appear in few tokens among them)."""
    sample = rng.sample(legal, min(len(legal), 8 * _SAMPLED))
    if is_long:
        return max(sample, key=lambda token: len(tokens[token]))
    by_first: dict[int, list[int]] = {}
    for token in legal if len(legal) <= 8 * _SAMPLED else [*sample, *legal[: 8 * _SAMPLED]]:
        by_first.setdefault(tokens[token][0], []).append(token)
    return rng.choice(by_first[rng.choice(sorted(by_first))])
