"""xgrammar: EBNF, regular expressions and JSON schemas, where it is named.

The library lets special tokens pass inside text and fails on a fill after the end: masks are cut to the vocabulary's
text, and nothing is asked after the end. Its import costs a second, so it happens with the first grammar that needs it.
"""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from decodex.grammar.constraint import Constraint
from decodex.grammar.errors import ConstraintError, MatcherError
from decodex.grammar.mask import has_bit
from decodex.grammar.matcher import MaskRow
from decodex.grammar.vocabulary import GrammarVocabulary

if TYPE_CHECKING:
    import xgrammar

__all__ = ["XgrammarGrammar", "XgrammarMatcher", "compile_ebnf", "json_ebnf", "load", "probe", "save"]

_MAX_WHITESPACE = 40
_PROBED_TOKENS = 16
_MAX_SECONDS = 0.1  # for the mask and the acceptance of one token
_SEPARATORS = {"spaced": (", ", ": "), "compact": (",", ":")}
_ESCAPE_RULE = re.compile(r"(?m)^basic_escape ::= .*$")
_OUR_ESCAPES = r'basic_escape ::= (["\\bfnrt])'
# in strings with a length the library lets control characters through, and no escapes
_COUNTED_CHARACTER = r"::= (([^\"\\\r\n]))"
_OUR_CHARACTER = r'::= (([^\0-\x1f\"\\]) | ("\\" basic_escape))'
_PREFIX = re.compile(r"^\[[\d:]+\] \S+:\d+: ")


def json_ebnf(schema: Any, whitespace: str) -> str:
    """The library's EBNF of a JSON schema, in the one JSON form that all backends emit."""
    import xgrammar

    options: dict[str, Any] = {"any_whitespace": True, "max_whitespace_cnt": _MAX_WHITESPACE}
    if whitespace != "flexible":
        options = {"any_whitespace": False, "separators": _SEPARATORS[whitespace]}
    try:
        grammar = str(xgrammar.Grammar.from_json_schema(json.dumps(schema), strict_mode=False, **options))
    except Exception as error:
        raise ConstraintError(_reason(error)) from None
    return _ESCAPE_RULE.sub(lambda _: _OUR_ESCAPES, grammar).replace(_COUNTED_CHARACTER, _OUR_CHARACTER)


def compile_ebnf(text: str, vocabulary: GrammarVocabulary) -> xgrammar.CompiledGrammar:
    """Compile EBNF whose start is `root`; ConstraintError where the library refuses it."""
    import xgrammar

    def build() -> xgrammar.GrammarCompiler:
        return xgrammar.GrammarCompiler(_tokenizer_info(vocabulary), max_threads=1, cache_enabled=False)

    compiler: xgrammar.GrammarCompiler = vocabulary.built("xgrammar.compiler", build)
    try:
        return compiler.compile_grammar(text)
    except Exception as error:
        raise ConstraintError(_reason(error)) from None


def probe(compiled: xgrammar.CompiledGrammar, vocabulary: GrammarVocabulary) -> None:
    """Refuse a grammar that the library takes long for at single tokens (it has no limits): the longest ones are tried.

    Meant for a process that can be killed, for a single one may take minutes.
    """
    grammar = XgrammarGrammar(Constraint("grammar", ""), vocabulary, compiled)
    matcher = grammar.matcher()
    for _ in range(_PROBED_TOKENS):
        started = time.thread_time()
        legal = vocabulary.unpack(matcher.mask() & vocabulary.text_bits)
        if not legal or not matcher.accept(max(legal, key=lambda token: len(vocabulary.tokens[token]))):
            return
        if time.thread_time() - started > _MAX_SECONDS:
            raise ConstraintError("xgrammar takes too long for single tokens of this grammar (llguidance has limits)")


def save(compiled: xgrammar.CompiledGrammar) -> bytes:
    """A compiled grammar as bytes, for another process."""
    return compiled.serialize_json().encode()


def load(saved: bytes, vocabulary: GrammarVocabulary) -> xgrammar.CompiledGrammar:
    """What `save` gave, for the same vocabulary."""
    import xgrammar

    return xgrammar.CompiledGrammar.deserialize_json(saved.decode(), _tokenizer_info(vocabulary))


def _tokenizer_info(vocabulary: GrammarVocabulary) -> xgrammar.TokenizerInfo:
    import xgrammar

    def build() -> xgrammar.TokenizerInfo:
        return xgrammar.TokenizerInfo(
            list(vocabulary.tokens),
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.size,
            stop_token_ids=sorted(vocabulary.eos_token_ids),
        )

    info: xgrammar.TokenizerInfo = vocabulary.built("xgrammar.tokenizer", build)
    return info


class XgrammarGrammar:
    """A compiled grammar, shared by its matchers."""

    backend = "xgrammar"

    def __init__(
        self, constraint: Constraint, vocabulary: GrammarVocabulary, compiled: xgrammar.CompiledGrammar
    ) -> None:
        self.constraint = constraint
        self.vocabulary = vocabulary
        self.num_bytes = int(compiled.memory_size_bytes) + 2_000
        self._compiled = compiled
        if not self.matcher().mask().any():
            raise ConstraintError("nothing can be written: no token of the model's vocabulary begins a member")

    def matcher(self) -> XgrammarMatcher:
        """A new matcher at the start."""
        import xgrammar

        return XgrammarMatcher(self, xgrammar.GrammarMatcher(self._compiled))


class XgrammarMatcher:
    """One request's position. The mask of a position is computed once and kept until the position changes."""

    __slots__ = ("_grammar", "_inner", "_mask", "_num_tokens")

    def __init__(
        self,
        grammar: XgrammarGrammar,
        inner: xgrammar.GrammarMatcher,
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
            mask = np.zeros((1, vocabulary.num_words), dtype=np.int32)
            try:
                if not self._inner.fill_next_token_bitmask(mask):  # all legal: the row was not written
                    mask.fill(-1)
            except Exception as error:
                raise MatcherError(_reason(error)) from None
            row = mask[0] & vocabulary.text_bits
            if self.is_accepting:
                row |= vocabulary.eos_bits
            self._mask = row
        return self._mask

    def accept(self, token_id: int) -> bool:
        """See Matcher.accept."""
        if not has_bit(self._grammar.vocabulary.text_bits, token_id):
            return False
        try:
            taken = self._inner.accept_token(token_id)
        except Exception as error:
            raise MatcherError(_reason(error)) from None
        if taken:
            self._mask = None
            self._num_tokens += 1
        return taken

    def rollback(self, num_tokens: int) -> None:
        """See Matcher.rollback."""
        if not 0 <= num_tokens <= self._num_tokens:
            raise MatcherError(f"rollback of {num_tokens} tokens, {self._num_tokens} were accepted")
        if num_tokens:
            try:
                self._inner.rollback(num_tokens)
            except Exception as error:
                raise MatcherError(_reason(error)) from None
            self._mask = None
            self._num_tokens -= num_tokens

    def fork(self) -> XgrammarMatcher:
        """See Matcher.fork."""
        return XgrammarMatcher(self._grammar, self._inner.fork(), self._mask, self._num_tokens)

    def forced_text(self) -> bytes:
        """See Matcher.forced_text."""
        return b"" if self.is_accepting else self._inner.find_jump_forward_string().encode()

    def forced_tokens(self) -> list[int]:
        """See Matcher.forced_tokens."""
        return [] if self.is_accepting else self._inner.find_jump_forward_tokens()

    @property
    def is_accepting(self) -> bool:
        """See Matcher.is_accepting."""
        return self._inner.is_completed()

    @property
    def is_terminated(self) -> bool:
        """See Matcher.is_terminated."""
        return self.is_accepting and not (self.mask() & ~self._grammar.vocabulary.eos_bits).any()


def _reason(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return _PREFIX.sub("", first)[:300] or type(error).__name__
