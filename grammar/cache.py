"""Compiled grammars by constraint, the least recently used going first when their bytes exceed the bound."""

from __future__ import annotations

import threading
from collections import OrderedDict

from decodex.grammar.constraint import Constraint
from decodex.grammar.matcher import CompiledGrammar

__all__ = ["GrammarCache"]


class GrammarCache:
    """Thread-safe. A grammar larger than the whole bound is not kept; matchers in use keep their own alive."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._grammars: OrderedDict[Constraint, CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """What the grammars inside hold together, by their own estimates."""
        return self._num_bytes

    def __len__(self) -> int:
        return len(self._grammars)

    def get(self, constraint: Constraint) -> CompiledGrammar | None:
        """The grammar of exactly this constraint (kind, text, backend and whitespace)."""
        with self._lock:
            grammar = self._grammars.get(constraint)
            if grammar is not None:
                self._grammars.move_to_end(constraint)
            return grammar

    def put(self, constraint: Constraint, grammar: CompiledGrammar) -> None:
        """Keep a grammar, and drop the oldest until all fit."""
        with self._lock:
            old = self._grammars.pop(constraint, None)
            self._num_bytes -= old.num_bytes if old is not None else 0
            if grammar.num_bytes > self._max_bytes:
                return
            self._grammars[constraint] = grammar
            self._num_bytes += grammar.num_bytes
            while self._num_bytes > self._max_bytes:
                _, dropped = self._grammars.popitem(last=False)
                self._num_bytes -= dropped.num_bytes
