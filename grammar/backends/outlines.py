"""outlines-core: regular expressions as an index of states, each with its tokens (and JSON schemas by way of a regex).

The index is built for the whole vocabulary at once, which takes long for long patterns: it always happens in a
process that can be killed. Afterwards a position is a number, and its mask a row that is kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import outlines_core

from decodex.grammar.constraint import Constraint
from decodex.grammar.errors import ConstraintError, MatcherError
from decodex.grammar.mask import has_bit
from decodex.grammar.matcher import MaskRow
from decodex.grammar.vocabulary import GrammarVocabulary

__all__ = ["OutlinesGrammar", "OutlinesMatcher", "compile_regex", "json_regex", "save", "vocabulary_of"]

_MAX_KEPT_MASKS = 128
_MAX_FORCED_TOKENS = 64  # legal tokens among which a common beginning is looked for
_MAX_WHITESPACE = 40
_MARK = "\ue000"  # stands for whitespace between the library and us
_STRING_INNER = r'(?:[^"\\\x00-\x1F]|\\["\\bfnrt])'


def json_regex(schema: Any, whitespace: str) -> str:
    """The library's regex of a JSON schema, in the one JSON form that all backends emit."""
    text = json.dumps(schema, ensure_ascii=False)
    if _MARK in text:
        raise ConstraintError("the schema holds U+E000, which outlines can't be given")
    try:
        regex: str = outlines_core.json_schema.build_regex_from_schema(text, _MARK)
    except Exception as error:
        raise ConstraintError(str(error).strip().partition("\n")[0][:300]) from None
    regex = regex.replace(outlines_core.json_schema.STRING_INNER, _STRING_INNER)
    if whitespace == "flexible":
        return regex.replace(_MARK, rf"[\x20\x0A\x0D\x09]{{0,{_MAX_WHITESPACE}}}")
    for sign in ",:":
        regex = regex.replace(f"{_MARK}{sign}{_MARK}", f"{sign} " if whitespace == "spaced" else sign)
    return regex.replace(_MARK, "")


def vocabulary_of(vocabulary: GrammarVocabulary) -> outlines_core.Vocabulary:
    """The library's vocabulary, built once."""

    def build() -> outlines_core.Vocabulary:
        by_bytes: dict[bytes, list[int]] = {}
        for token_id, token in vocabulary.text_tokens():
            by_bytes.setdefault(token, []).append(token_id)
        return outlines_core.Vocabulary(min(vocabulary.eos_token_ids), by_bytes)

    return vocabulary.built("outlines", build)


def compile_regex(regex: str, vocabulary: GrammarVocabulary) -> outlines_core.Index:
    """The index of a regex in Rust's syntax that matches the whole output."""
    try:
        # the library takes the first alternative that matches; held to the end of the text, it takes them all
        return outlines_core.Index(rf"(?:{regex})\z", vocabulary_of(vocabulary))
    except Exception as error:
        raise ConstraintError(str(error).strip().partition("\n")[0][:300]) from None


def save(index: outlines_core.Index) -> bytes:
    """An index as bytes, for another process."""
    _, (parts,) = index.__reduce__()
    return bytes(parts)


class OutlinesGrammar:
    """An index with the masks of the states that were visited."""

    backend = "outlines"

    def __init__(self, constraint: Constraint, vocabulary: GrammarVocabulary, saved: bytes, has_empty: bool) -> None:
        """saved: what `save` gave; has_empty: the empty text is a member too (the index never has it)."""
        index = outlines_core.Index.from_binary(list(saved))
        self.constraint = constraint
        self.vocabulary = vocabulary
        self.index = index
        self.has_empty = has_empty
        self.num_bytes = 2 * len(saved) + 20_000 + _MAX_KEPT_MASKS * 4 * vocabulary.num_words
        self._masks: dict[int, MaskRow] = {}
        self._dead = frozenset[int]() if vocabulary.is_complete else _dead_states(index)
        self.start = int(index.get_initial_state())
        if not has_empty and (self.start in self._dead or not self.mask_of(self.start).any()):
            raise ConstraintError("nothing can be written: no token of the model's vocabulary begins a member")

    def matcher(self) -> OutlinesMatcher:
        """A new matcher at the start."""
        return OutlinesMatcher(self, [self.start])

    def next_state(self, state: int, token_id: int) -> int | None:
        """The state after a token; None where it is illegal."""
        following = self.index.get_next_state(state, token_id)
        return None if following is None or following in self._dead else int(following)

    def mask_of(self, state: int) -> MaskRow:
        """The text tokens of a state; not to be written to."""
        mask = self._masks.get(state)
        if mask is None:
            token_ids = self.index.get_allowed_tokens(state) or []
            if self._dead:
                token_ids = [t for t in token_ids if self.next_state(state, t) is not None]
            mask = self.vocabulary.pack(token_ids) & self.vocabulary.text_bits
            if len(self._masks) >= _MAX_KEPT_MASKS:
                self._masks = {}
            self._masks[state] = mask
        return mask


class OutlinesMatcher:
    """One request's states, one per accepted token after the start."""

    __slots__ = ("_grammar", "_states")

    def __init__(self, grammar: OutlinesGrammar, states: list[int]) -> None:
        self._grammar, self._states = grammar, states

    def fill(self, row: MaskRow) -> bool:
        """See Matcher.fill."""
        row[:] = self._grammar.mask_of(self._states[-1])
        if self.is_accepting:
            row |= self._grammar.vocabulary.eos_bits
        return True

    def accept(self, token_id: int) -> bool:
        """See Matcher.accept."""
        if not has_bit(self._grammar.vocabulary.text_bits, token_id):
            return False
        following = self._grammar.next_state(self._states[-1], token_id)
        if following is None:
            return False
        self._states.append(following)
        return True

    def rollback(self, num_tokens: int) -> None:
        """See Matcher.rollback."""
        if not 0 <= num_tokens < len(self._states):
            raise MatcherError(f"rollback of {num_tokens} tokens, {len(self._states) - 1} were accepted")
        if num_tokens:
            del self._states[-num_tokens:]

    def fork(self) -> OutlinesMatcher:
        """See Matcher.fork."""
        return OutlinesMatcher(self._grammar, list(self._states))

    def forced_text(self) -> bytes:
        """See Matcher.forced_text."""
        if self.is_accepting:
            return b""
        vocabulary = self._grammar.vocabulary
        token_ids = vocabulary.unpack(self._grammar.mask_of(self._states[-1]))
        if len(token_ids) > _MAX_FORCED_TOKENS:
            return b""
        return _common_beginning([vocabulary.tokens[token_id] for token_id in token_ids])

    def forced_tokens(self) -> list[int]:
        """See Matcher.forced_tokens: the library has none."""
        return []

    @property
    def is_accepting(self) -> bool:
        """See Matcher.is_accepting."""
        if self._grammar.has_empty and len(self._states) == 1:
            return True
        return bool(self._grammar.index.is_final_state(self._states[-1]))

    @property
    def is_terminated(self) -> bool:
        """See Matcher.is_terminated."""
        if not self.is_accepting:
            return False
        return not (self._grammar.mask_of(self._states[-1]) & self._grammar.vocabulary.text_bits).any()


def _common_beginning(tokens: Sequence[bytes]) -> bytes:
    if not tokens:
        return b""
    first, last = min(tokens), max(tokens)
    size = 0
    while size < min(len(first), len(last)) and first[size] == last[size]:
        size += 1
    return first[:size]


def _dead_states(index: outlines_core.Index) -> frozenset[int]:
    """States from which this vocabulary can't spell any member."""
    transitions: dict[int, dict[int, int]] = index.get_transitions()
    before: dict[int, set[int]] = {}
    states = {int(index.get_initial_state()), *transitions}
    for state, following in transitions.items():
        for target in following.values():
            before.setdefault(target, set()).add(state)
            states.add(target)
    alive = {state for state in states if index.is_final_state(state)}
    queue = list(alive)
    for state in queue:
        for previous in before.get(state, set()) - alive:
            alive.add(previous)
            queue.append(previous)
    return frozenset(states - alive)
