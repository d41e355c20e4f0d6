"""Schemas compiled for a vocabulary of bytes, by each library itself and by decodex's routing, and texts judged.

Every adapter has `compile(schema) -> Judge | None` (None: refused); a Judge says whether a text is a member. Texts are
fed byte by byte, so a member is one whose every byte is legal where it stands and whose end is legal.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import llguidance
import outlines_core
import re2
import xgrammar

from decodex.grammar.errors import ConstraintError
from decodex.grammar.schema.prepare import check_backend, prepare_schema, route

__all__ = ["BACKENDS", "Refused", "auto", "canonical", "compiled", "on_canonical"]

Judge = Callable[[str], bool]
END = 256


class Refused(Exception):
    """The schema is refused, with the reason."""


class _Bytes:
    eos_token_id = END
    bos_token_id = None
    tokens = (*(bytes([i]) for i in range(256)), b"<end>")
    special_token_ids = (END,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


LL_TOKENIZER = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), n_vocab=257, slices=[])
LL_OPTIONS: Any = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False,
                   "json_allowed_escapes": 'nrbtf\\"'}  # fmt: skip
XG_TOKENIZER = xgrammar.TokenizerInfo(list(_Bytes.tokens), xgrammar.VocabType.RAW, vocab_size=257, stop_token_ids=[END])
XG_COMPILER = xgrammar.GrammarCompiler(XG_TOKENIZER, max_threads=1, cache_enabled=False)


def by_llguidance(schema: Any) -> Judge:
    """llguidance's JSON schemas."""
    schema = schema if isinstance(schema, dict) else {} if schema else {"not": {}}
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=LL_OPTIONS)
    matcher = llguidance.LLMatcher(LL_TOKENIZER, grammar, log_level=0)
    if matcher.is_error():
        raise Refused(matcher.get_error().split("\n")[0][:200])

    def judge(text: str) -> bool:
        one = matcher.deep_copy()
        ids = list(text.encode("utf-8", "surrogatepass"))
        num = one.try_consume_tokens(ids)
        return num == len(ids) and not one.is_error() and one.is_accepting()

    return judge


def by_xgrammar(schema: Any) -> Judge:
    """xgrammar's JSON schemas, open objects open."""
    try:
        grammar = XG_COMPILER.compile_json_schema(
            json.dumps(schema), any_whitespace=False, separators=(", ", ": "), strict_mode=False
        )
    except Exception as error:
        raise Refused(str(error).split("\n")[-1][:200]) from error

    def judge(text: str) -> bool:
        matcher = xgrammar.GrammarMatcher(grammar, terminate_without_stop_token=False)
        return matcher.accept_string(text.encode("utf-8", "surrogatepass")) and matcher.accept_token(END)

    return judge


def by_outlines(schema: Any) -> Judge:
    """outlines-core's JSON schemas, through the regex that it makes of them."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 128 << 20
    try:
        regex = outlines_core.json_schema.build_regex_from_schema(json.dumps(schema), r"[ ]?")
        compiled = re2.compile(regex, options)
    except Exception as error:
        raise Refused(str(error)[:200]) from error
    return lambda text: compiled.fullmatch(text) is not None


BACKENDS: dict[str, Callable[[Any], Judge]] = {
    "llguidance": by_llguidance,
    "xgrammar": by_xgrammar,
    "outlines": by_outlines,
}


def canonical(schema: Any) -> Any:
    """decodex's prepared schema."""
    try:
        return prepare_schema(json.dumps(schema))
    except ConstraintError as error:
        raise Refused(f"{error.keyword}: {error.reason}") from error


def on_canonical(prepared: Any, backend: str) -> Judge:
    """A prepared schema on one backend, by the table or against it."""
    return BACKENDS[backend](prepared.schema)


def auto(schema: Any) -> Judge:
    """What decodex does with a schema."""
    prepared = canonical(schema)
    try:
        backend = route(prepared)
        check_backend(prepared, backend)
    except ConstraintError as error:
        raise Refused(f"{error.keyword}: {error.reason}") from error
    return on_canonical(prepared, backend)


def compiled(backend: str, schema: Any) -> Judge:
    """A schema on a library ("llguidance"), through decodex ("auto"), or rewritten by decodex ("prepared:xgrammar")."""
    if backend == "auto":
        return auto(schema)
    if backend.startswith("prepared:"):
        return on_canonical(canonical(schema), backend.removeprefix("prepared:"))
    return BACKENDS[backend](schema)
