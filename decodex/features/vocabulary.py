"""What features need to know of the tokenizer: how many tokens there are and which bytes each adds to a text."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

from decodex.errors import RequestError
from decodex.features.word_automaton import MAX_WORD_BYTES, WordAutomaton
from decodex.token_bytes import TokenBytes
from decodex.tokenizer import Tokenizer

__all__ = ["Vocabulary"]

MAX_AUTOMATA = 32


class Vocabulary:
    """The V tokens that can be chosen. Owns the byte table and the word automata (least recently used go first), which
    are built when first asked for; safe from any thread."""

    def __init__(self, tokenizer: Tokenizer, model_vocab_size: int) -> None:
        self.tokenizer = tokenizer
        self.size = min(tokenizer.vocab_size, model_vocab_size)
        self.eos_token_ids = frozenset(token for token in tokenizer.eos_token_ids if token < self.size)
        self._table: TokenBytes | None = None
        self._automata: OrderedDict[tuple[frozenset[str], bool], WordAutomaton] = OrderedDict()
        self._lock = threading.RLock()

    def token_bytes(self, field: str) -> TokenBytes:
        """The bytes of each token. RequestError naming `field` where the tokenizer doesn't tell."""
        with self._lock:
            if self._table is None:
                tokens = self.tokenizer.token_bytes()
                if tokens is None:
                    hint = "byte-level and byte-fallback vocabularies are"
                    raise RequestError(field, "text", "a model whose tokens are known as bytes", hint)
                self._table = TokenBytes(tokens[: self.size], self.tokenizer.special_ids)
            return self._table

    def automaton(self, words: Iterable[str], skip_special_tokens: bool, field: str) -> WordAutomaton:
        """The automaton of a set of words. RequestError naming `field` for too many bytes or a tokenizer without."""
        key = (frozenset(words), skip_special_tokens)
        with self._lock:
            automaton = self._automata.get(key)
            if automaton is None:
                encoded = sorted(word.encode() for word in key[0])
                size = sum(map(len, encoded))
                if size > MAX_WORD_BYTES:
                    raise RequestError(field, f"{size} bytes", f"at most {MAX_WORD_BYTES} bytes together")
                automaton = WordAutomaton(encoded, self.token_bytes(field), skip_special_tokens)
                self._automata[key] = automaton
                if len(self._automata) > MAX_AUTOMATA:
                    self._automata.popitem(last=False)
            self._automata.move_to_end(key)
            return automaton

    def newline_ids(self) -> list[int]:
        """The token that a line break alone is written with (none where it takes several)."""
        ids = self.tokenizer.encode("\n", False)
        return [ids[-1]] if ids and 0 <= ids[-1] < self.size and self.tokenizer.decode(ids[-1:]) == "\n" else []
