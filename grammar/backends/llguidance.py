"""llguidance: JSON schemas, regular expressions, grammars and tags, with the room's own semantics on top.

The library never raises: after a fault its matcher is in an error state for ever, so the state is read after every
call, and a token is tried only where it can be taken back. Its forks are cheap and share what the lexer has built.
"""

from __future__ import annotations

import functools
import json
import threading
from typing import Any

import llguidance
import numpy as np

from decodex.grammar.constraint import Constraint
from decodex.grammar.errors import ConstraintError, MatcherError
from decodex.grammar.mask import has_bit
from decodex.grammar.matcher import MaskRow, address_of
from decodex.grammar.vocabulary import GrammarVocabulary

__all__ = ["LlguidanceGrammar", "LlguidanceMatcher", "compile_json", "compile_lark", "json_with_options"]

MAX_WHITESPACE = 40  # characters in a run of "flexible" whitespace
SEPARATORS = {"spaced": (", ", ": "), "compact": (",", ":"), "flexible": (",", ":")}
_BYTES_PER_CHARACTER = 60  # of a compiled grammar, measured by evals/maskbench
_FIRST_BYTES = 200_000
_MAX_ROW_ITEMS = 20_000  # four for each optional property of an object
_MAX_JSON_ITEMS = 200_000  # for one mask of a JSON schema, which is never ambiguous
_MAX_ITEMS = 20_000  # of a parser for one mask: a quarter of a second where grammars are ambiguous


class _Encoder:
    """The vocabulary as the library's tokenizer wrapper wants it."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self.eos_token_id = min(vocabulary.eos_token_ids)
        self.bos_token_id = None
        self.tokens = vocabulary.tokens
        self.special_token_ids = sorted(vocabulary.special_ids)
        self._spell = functools.lru_cache(4096)(vocabulary.spell)  # forced texts come again and again

    def __call__(self, text: str) -> list[int]:
        if not isinstance(text, str):
            raise TypeError("text only")  # how the wrapper finds out
        return self._spell(text)


def tokenizer_of(vocabulary: GrammarVocabulary) -> llguidance.LLTokenizer:
    """The library's tokenizer of a vocabulary, built once."""

    def build() -> llguidance.LLTokenizer:
        wrapper = llguidance.TokenizerWrapper(_Encoder(vocabulary))
        return llguidance.LLTokenizer(wrapper, eos_token=sorted(vocabulary.eos_token_ids))

    tokenizer: llguidance.LLTokenizer = vocabulary.built("llguidance", build)
    return tokenizer


def json_options(whitespace: str) -> dict[str, Any]:
    """The library's options for the one JSON form that all backends emit."""
    item, key = SEPARATORS[whitespace]
    options: dict[str, Any] = {
        "item_separator": item,
        "key_separator": key,
        "whitespace_flexible": whitespace == "flexible",
        "json_allowed_escapes": 'nrbtf\\"',  # no u: names could be spelled in two ways
        "json_allow_general_unicode_escapes": False,
        "lenient": False,
        "coerce_one_of": False,
    }
    if whitespace == "flexible":
        options["whitespace_pattern"] = rf"[\x20\x0A\x0D\x09]{{1,{MAX_WHITESPACE}}}"
    return options


def json_with_options(schema: Any, whitespace: str) -> dict[str, Any]:
    """A schema with the library's options inside it."""
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    return {**schema, "x-guidance": json_options(whitespace)}


def compile_json(
    schema: Any, whitespace: str, constraint: Constraint, vocabulary: GrammarVocabulary
) -> LlguidanceGrammar:
    """Compile a JSON schema by itself: a millisecond faster than inside a Lark grammar."""
    grammar = {"json_schema": json_with_options(schema, whitespace)}
    limits = llguidance.LLParserLimits(
        verbose_errors=False, max_items_in_row=_MAX_ROW_ITEMS, step_max_items=_MAX_JSON_ITEMS
    )
    try:
        return _compile(grammar, constraint, vocabulary, frozenset(), limits)
    except ConstraintError as error:
        raise _json_refusal(error) from error


def _json_refusal(error: ConstraintError) -> ConstraintError:
    """The library's own words, short (it quotes regexes in full), and what they mean where that is known."""
    if error.path or error.keyword:
        return error
    if "Regex is empty" in error.reason:
        reason = "no text has this pattern or format and this length"
        return ConstraintError(reason, path="$", keyword="pattern")
    known, found, rest = error.reason.partition("Unsatisfiable schema: ")
    if found and not known:
        return ConstraintError(f"no value satisfies the schema: {rest:.120}", path="$")
    return ConstraintError(f"llguidance can't take the schema: {error.reason:.120}", path="$")


def compile_lark(
    text: str,
    constraint: Constraint,
    vocabulary: GrammarVocabulary,
    markers: frozenset[int] = frozenset(),
    *,
    is_bounded: bool = False,
) -> LlguidanceGrammar:
    """Compile a Lark grammar. markers: special tokens that are legal where it names them; is_bounded: somebody else's
    grammar, so a single mask is kept from taking long."""
    grammar = {"lark_grammar": f'%llguidance {{"no_forcing": true}}\n{text}'}
    limits = llguidance.LLParserLimits(verbose_errors=False, step_max_items=_MAX_ITEMS if is_bounded else None)
    return _compile(grammar, constraint, vocabulary, markers, limits)


def _compile(
    grammar: dict[str, Any],
    constraint: Constraint,
    vocabulary: GrammarVocabulary,
    markers: frozenset[int],
    limits: llguidance.LLParserLimits,
) -> LlguidanceGrammar:
    text = json.dumps({"grammars": [grammar]})
    inner = llguidance.LLMatcher(tokenizer_of(vocabulary), text, log_level=0, limits=limits)
    if inner.is_error():
        raise ConstraintError(_first_line(inner.get_error()))
    return LlguidanceGrammar(constraint, vocabulary, inner, markers, len(text))


class LlguidanceGrammar:
    """A compiled grammar: a matcher at the start, that every request forks."""

    backend = "llguidance"

    def __init__(
        self,
        constraint: Constraint,
        vocabulary: GrammarVocabulary,
        inner: llguidance.LLMatcher,
        markers: frozenset[int],
        num_characters: int,
    ) -> None:
        self.constraint = constraint
        self.vocabulary = vocabulary
        self.num_bytes = _FIRST_BYTES + _BYTES_PER_CHARACTER * num_characters
        self.legal_bits = vocabulary.text_bits | vocabulary.pack(markers) if markers else vocabulary.text_bits
        self._inner = inner
        self._lock = threading.Lock()
        try:
            start = LlguidanceMatcher(self, inner.deep_copy())
            self.first_mask = start.mask()
        except MatcherError as error:
            if "NoExtension" not in str(error):
                raise ConstraintError(f"the constraint is too complex: {error}") from error
            self.first_mask = np.zeros(vocabulary.num_words, dtype=np.int32)
        if not self.first_mask.any():
            raise ConstraintError("nothing can be written: no token of the model's vocabulary begins a member")

    def matcher(self) -> LlguidanceMatcher:
        """A new matcher at the start."""
        with self._lock:
            return LlguidanceMatcher(self, self._inner.deep_copy(), self.first_mask)


class LlguidanceMatcher:
    """One request's position. The mask of a position is computed once and kept until the position changes."""

    __slots__ = ("_grammar", "_inner", "_mask", "_num_tokens")

    def __init__(
        self,
        grammar: LlguidanceGrammar,
        inner: llguidance.LLMatcher,
        mask: MaskRow | None = None,
        num_tokens: int = 0,
    ) -> None:
        self._grammar, self._inner, self._mask, self._num_tokens = grammar, inner, mask, num_tokens

    def fill(self, row: MaskRow) -> bool:
        """See Matcher.fill."""
        row[:] = self.mask()
        return True

    def mask(self) -> MaskRow:
        """The mask of this position; not to be written to."""
        if self._mask is None:
            vocabulary = self._grammar.vocabulary
            mask = np.zeros(vocabulary.num_words, dtype=np.int32)
            is_accepting = self.is_accepting
            if not self._inner.is_stopped():
                self._inner.unsafe_compute_mask_ptr(address_of(mask), mask.nbytes)
                self._check()
                mask &= self._grammar.legal_bits
                if not is_accepting and np.count_nonzero(mask) == 1:
                    self._unforce(mask)
            if is_accepting:
                mask |= vocabulary.eos_bits
            self._mask = mask
        return self._mask

    def _unforce(self, mask: MaskRow) -> None:
        """Where a text is forced, the library leaves its own spelling of it as the only legal token (in JSON schemas; a
        Lark grammar can say that it must not). Every other token that spells the same text is legal too."""
        forced = self._inner.compute_ff_bytes()
        self._check()
        if not forced:
            return
        around = self._grammar.vocabulary.around(forced)
        mask |= around.within
        if not len(around.beyond) and not around.unspelt:
            return
        singles = self._grammar.vocabulary.spell_singly(forced)
        after = self.fork()
        if len(singles) < len(forced) or after._inner.try_consume_tokens(singles) < len(singles):
            after._check()
            return  # what the library forces can't be written byte by byte: its own spelling stays the only one
        after._mask = None
        legal = np.unpackbits(after.mask().view(np.uint8), bitorder="little")
        found = around.beyond[legal[around.rests] != 0].tolist()
        found += after._legal_of([around.unspelt[i] for i in np.flatnonzero(legal[around.starts])])
        bits = mask.view(np.uint32)
        for token_id in found:
            bits[token_id >> 5] |= 1 << (token_id & 31)

    def _legal_of(self, texts: list[tuple[int, bytes]]) -> list[int]:
        """The ids whose bytes, in order, are legal here."""
        found, wrong = [], b"\xff"
        for token_id, text in texts:
            if text.startswith(wrong):
                continue
            size = self._inner.validate_tokens(self._grammar.vocabulary.spell_singly(text))
            if size >= len(text):
                found.append(token_id)
            else:  # nothing that begins like this is legal
                wrong = text[: size + 1]
        self._check()
        return found

    def accept(self, token_id: int) -> bool:
        """See Matcher.accept."""
        if not has_bit(self._grammar.legal_bits, token_id) or self._inner.is_stopped():
            self._check()
            return False
        taken = self._inner.try_consume_tokens([token_id])
        self._check()
        if taken:
            self._mask = None
            self._num_tokens += 1
        return taken == 1

    def rollback(self, num_tokens: int) -> None:
        """See Matcher.rollback."""
        if not 0 <= num_tokens <= self._num_tokens:
            raise MatcherError(f"rollback of {num_tokens} tokens, {self._num_tokens} were accepted")
        if num_tokens:
            done = self._inner.rollback(num_tokens)
            self._check()
            if not done:
                raise MatcherError(f"llguidance can't take back {num_tokens} tokens")
            self._mask = None
            self._num_tokens -= num_tokens

    def fork(self) -> LlguidanceMatcher:
        """See Matcher.fork."""
        return LlguidanceMatcher(self._grammar, self._inner.deep_copy(), self._mask, self._num_tokens)

    def forced_text(self) -> bytes:
        """See Matcher.forced_text."""
        if self.is_accepting:
            return b""
        text = self._inner.compute_ff_bytes()
        self._check()
        return text.partition(b"\xff")[0]  # 0xFF begins the library's spelling of a special token

    def forced_tokens(self) -> list[int]:
        """See Matcher.forced_tokens."""
        if self.is_accepting:
            return []
        tokens = self._inner.compute_ff_tokens()
        self._check()
        legal = [has_bit(self._grammar.legal_bits, token) for token in tokens]
        return tokens[: legal.index(False)] if False in legal else tokens

    @property
    def is_accepting(self) -> bool:
        """See Matcher.is_accepting."""
        accepting = self._inner.is_accepting()
        self._check()
        return accepting

    @property
    def is_terminated(self) -> bool:
        """See Matcher.is_terminated."""
        if not self.is_accepting:
            return False
        return self._inner.is_stopped() or not (self.mask() & ~self._grammar.vocabulary.eos_bits).any()

    def _check(self) -> None:
        if self._inner.is_error():
            raise MatcherError(_first_line(self._inner.get_error()))


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:300] or "llguidance failed without a reason"
