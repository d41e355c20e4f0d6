"""From a request's constraint to its compiled grammar, or a refusal with field, path and keyword. Any thread."""

from __future__ import annotations

import functools
import json
import os
import threading
import weakref
from typing import Any

from decodex.constrained import Grammar
from decodex.errors import RequestError
from decodex.features.vocabulary import Vocabulary
from decodex.grammar.compiler import GrammarCompiler
from decodex.grammar.constraint import Constraint
from decodex.grammar.errors import ConstraintError
from decodex.grammar.matcher import MaskRow
from decodex.grammar.schema.prepare import check_backend, prepare_schema
from decodex.grammar.vocabulary import GrammarVocabulary
from decodex.params import SamplingParams
from decodex.structured_outputs import FIELD

__all__ = ["Grammars", "refusal_of_schema"]


MAX_REMEMBERED = 1 << 14  # characters of a schema whose refusal, or that it has none, is remembered


def refusal_of_schema(text: str) -> str | None:
    """Why no part of a structural tag can follow a schema (JSON text), or None where one can."""
    return _known_refusal(text) if len(text) <= MAX_REMEMBERED else _refusal(text)


@functools.lru_cache(maxsize=1024)
def _known_refusal(text: str) -> str | None:
    return _refusal(text)


def _refusal(text: str) -> str | None:
    try:
        check_backend(prepare_schema(text), "llguidance")
    except ConstraintError as error:
        return str(error)
    return None


class Grammars:
    """Owns an engine's grammar compiler, with its cache. Built when the first constrained request comes."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._compiler: GrammarCompiler | None = None
        self._tokens: GrammarVocabulary | None = None

    def compile(self, params: SamplingParams, cancelled: threading.Event | None = None) -> Grammar | None:
        """The compiled grammar of a request's constraint, or the one that is known already; None where there is no
        constraint. Blocks until then, or until `cancelled` is set; raises RequestError."""
        if params.constrained is None:
            return None
        compiler, tokens = self._started()
        wanted = params.constrained
        constraint = wanted.constraint
        try:
            compiled = compiler.compile(constraint, cancelled)
        except ConstraintError as error:
            by = "can be honoured" if wanted.backend == "auto" else f"{wanted.backend} honours"
            got = getattr(wanted, wanted.kind)
            raise RequestError(f"{FIELD}.{wanted.kind}", got, f"a constraint that {by}", str(error)) from error
        stops = tokens.pack(params.stop_token_ids) if params.stop_token_ids else None
        return Grammar(compiled, tokens, _allowed(constraint, tokens), stops, wanted.finish_within_budget)

    def close(self) -> None:
        """End the compiler's threads and processes."""
        with self._lock:
            if self._compiler is not None:
                self._compiler.close()

    def _started(self) -> tuple[GrammarCompiler, GrammarVocabulary]:
        with self._lock:
            if self._compiler is None or self._tokens is None or self._process != os.getpid():
                self._process = os.getpid()  # a forked process has none of the compiler's threads
                self._tokens = self._make_vocabulary()
                self._compiler = GrammarCompiler(self._tokens)
                weakref.finalize(self, self._compiler.close)
            return self._compiler, self._tokens

    def _make_vocabulary(self) -> GrammarVocabulary:
        known = self._vocabulary
        if not known.eos_token_ids:
            raise RequestError(FIELD, "a constraint", "a model with an end of sequence")
        table, tokenizer = known.token_bytes(FIELD), known.tokenizer

        def encode(text: str) -> list[int]:
            ids = tokenizer.encode(text, add_special_tokens=False)
            if not tokenizer.special_ids.isdisjoint(ids):
                raise ValueError("text that spells out a special token")
            return ids

        return GrammarVocabulary(table.tokens, tokenizer.special_ids, known.eos_token_ids, encode)


def _allowed(constraint: Constraint, vocabulary: GrammarVocabulary) -> MaskRow:
    """Text tokens and ends; in a structural tag also the special tokens that are spelled out in it."""
    allowed = vocabulary.text_bits | vocabulary.eos_bits
    if constraint.is_whole_output:
        return allowed
    tag = b"\n".join(text.encode() for text in _texts(json.loads(constraint.text)))
    named = [i for i in vocabulary.special_ids if vocabulary.tokens[i] and vocabulary.tokens[i] in tag]
    return allowed | vocabulary.pack(named)


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in _texts(item)]
