"""A vocabulary small enough to enumerate, and matchers checked against languages that are written out in full."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

import numpy as np

from decodex.grammar.backends.compile import compile_here
from decodex.grammar.constraint import Constraint
from decodex.grammar.matcher import CompiledGrammar, Matcher
from decodex.grammar.plan import plan_of
from decodex.grammar.vocabulary import GrammarVocabulary

BACKENDS = ("llguidance", "xgrammar", "outlines")
_MERGED = ("ab", "bc", "abc", "aa", "ba", "01", "10", "000", '"a"', '": ', '{"', '"}', "]}", ", ", "true", "ue", "é")
_SPECIAL = (b"<eos>", b"<tool>", b"<eot>", b"<end>")


def toy_tokens() -> list[bytes]:
    """All bytes, some merged tokens, doubles of them, tokens without bytes, and special tokens."""
    merged = [text.encode() for text in _MERGED]
    return [*_SPECIAL[:2], *(bytes([b]) for b in range(256)), b"", *merged, *_SPECIAL[2:], b"ab", b"", b"c"]


def toy_vocabulary() -> GrammarVocabulary:
    """Two ends, `<eos>` and `<eot>`; `<tool>` and `<end>` are special; a token count that fills no word."""
    tokens = toy_tokens()
    special = frozenset(tokens.index(token) for token in _SPECIAL)
    ends = frozenset(tokens.index(token) for token in (b"<eos>", b"<eot>"))
    by_bytes = {token: index for index, token in reversed(list(enumerate(tokens))) if token and index not in special}

    def encode(text: str) -> list[int]:
        data, ids = text.encode(), []
        while data:
            size = next(n for n in range(min(5, len(data)), 0, -1) if data[:n] in by_bytes)
            ids.append(by_bytes[data[:size]])
            data = data[size:]
        return ids

    return GrammarVocabulary(tokens, special, ends, encode)


VOCABULARY = toy_vocabulary()


def compiled(kind: str, text: str, backend: str = "auto", whitespace: str = "spaced") -> CompiledGrammar:
    """Compile in this process, also what the engine would give to another one."""
    return compile_here(plan_of(Constraint(kind, text, backend, whitespace)), VOCABULARY)  # type: ignore[arg-type]


def mask_of(matcher: Matcher, vocabulary: GrammarVocabulary = VOCABULARY) -> set[int]:
    """The legal tokens; the row is full of rubbish before."""
    row = np.full(vocabulary.num_words, 0x5A5A5A5A, dtype=np.int32)
    assert matcher.fill(row), "special tokens are never legal, so a mask is never empty of work"
    assert not (row & ~vocabulary.pack(range(vocabulary.size))).any(), "a bit beyond the vocabulary"
    return set(vocabulary.unpack(row))


def expected_mask(members: Collection[bytes], text: bytes) -> set[int]:
    """Tokens after which some member goes on, and the ends where the text is a member: by looking at every member."""
    following = [member[len(text) :] for member in members if member.startswith(text)]
    legal = {
        i
        for i, token in enumerate(VOCABULARY.tokens)
        if token and i not in VOCABULARY.special_ids and any(rest.startswith(token) for rest in following)
    }
    return legal | (set(VOCABULARY.eos_token_ids) if text in members else set())


def check_state(matcher: Matcher, members: Collection[bytes], text: bytes) -> set[int]:
    """Everything that a matcher says, against the members; returns the legal tokens that are text."""
    wanted = expected_mask(members, text)
    assert mask_of(matcher) == wanted, text
    assert matcher.is_accepting == (text in members), text
    going_on = wanted - VOCABULARY.eos_token_ids
    assert matcher.is_terminated == (text in members and not going_on), text
    forced = text + matcher.forced_text()
    assert all(m.startswith(forced) for m in members if m.startswith(text)), (text, forced)
    spelt = text + b"".join(VOCABULARY.tokens[i] for i in matcher.forced_tokens())
    assert all(m.startswith(spelt) for m in members if m.startswith(text)), (text, spelt)
    return going_on


def check_finite(grammar: CompiledGrammar, members: Collection[bytes], rng: random.Random, walks: int = 3) -> None:
    """Random walks with illegal tokens and rollbacks between; every state is compared with the members."""
    members = set(members)
    for _ in range(walks):
        matcher = grammar.matcher()
        path: list[int] = []
        for _ in range(12):
            text = b"".join(VOCABULARY.tokens[i] for i in path)
            legal = check_state(matcher, members, text)
            illegal = rng.randrange(-2, VOCABULARY.size + 40)
            if illegal not in legal and illegal not in VOCABULARY.eos_token_ids:
                assert not matcher.accept(illegal), (text, illegal)
                check_state(matcher, members, text)
            if path and rng.random() < 0.2:
                count = rng.randint(1, len(path))
                matcher.rollback(count)
                del path[-count:]
            elif legal:
                path.append(rng.choice(sorted(legal)))
                assert matcher.accept(path[-1])
            else:
                break


def replayed(grammar: CompiledGrammar, path: Sequence[int]) -> Matcher:
    """A new matcher that was given these tokens."""
    matcher = grammar.matcher()
    assert all(matcher.accept(token) for token in path)
    return matcher


def accepts(grammar: CompiledGrammar, text: str | bytes) -> bool:
    """Whether a text is a member, byte by byte."""
    matcher = grammar.matcher()
    data = text.encode() if isinstance(text, str) else text
    first = VOCABULARY.tokens.index(b"\0")
    return all(matcher.accept(first + byte) for byte in data) and matcher.is_accepting
