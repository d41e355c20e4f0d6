"""The incremental parser of tool calls: text in any pieces, the same deltas together.

A call begins where its whole header is read (opening, name, the brace of its arguments); until then its beginning is
held back, which is never longer than a header. What turns out not to be a call is content.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
import string
from collections.abc import Callable, Sequence

from decodex.server.tools.delta import CallDelta, Delta
from decodex.server.tools.syntax import CallSyntax

__all__ = ["Literals", "ToolParser", "fitting_id", "new_call_id"]

_LETTERS = string.ascii_letters + string.digits


def new_call_id(syntax: CallSyntax) -> str:
    """An id that nobody else has."""
    if syntax.id_length is None:
        return f"call_{secrets.token_hex(12)}"
    return "".join(secrets.choice(_LETTERS) for _ in range(syntax.id_length))


def fitting_id(syntax: CallSyntax, call_id: str) -> str:
    """An id as the format's templates take it: the same one where it fits, else always the same other one."""
    length = syntax.id_length
    if length is None or (len(call_id) == length and all(c in _LETTERS for c in call_id)):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:length]


class ToolParser:
    """Reads one choice. `feed` and `finish` return what became certain."""

    def __init__(
        self,
        syntax: CallSyntax,
        names: Sequence[str],
        new_id: Callable[[], str] | None = None,
        *,
        skips_whitespace: bool = False,
    ) -> None:
        """`names`: the functions that may be called. skips_whitespace: leave out what the content begins with."""
        self._syntax = syntax
        self._new_id = new_id or (lambda: new_call_id(syntax))
        headers = {f"{syntax.header(name)}{{": name for name in names}
        self._first = {f"{opening}{header}": name for opening in syntax.openings for header, name in headers.items()}
        self._literals = Literals(tuple(self._first) if syntax.trigger else ())
        self._next = {f"{syntax.separator}{header}": name for header, name in headers.items()}
        self._state: Callable[[list[Delta]], bool] = self._read_content if syntax.trigger else self._read_start
        self._held = ""
        self._spaces: str | None = None if skips_whitespace else ""  # of the content's beginning; None: left out
        self._is_at_start = True  # of a content
        self._arguments = _JsonObject()
        self.num_calls = 0

    @property
    def is_in_call(self) -> bool:
        """Whether the last call's arguments have not ended yet."""
        return self._state == self._read_arguments

    def feed(self, text: str) -> list[Delta]:
        """What the next piece of text adds."""
        self._held += text
        deltas: list[Delta] = []
        while self._state(deltas):
            pass
        return deltas

    def finish(self) -> list[Delta]:
        """What was held back, once no text follows."""
        deltas: list[Delta] = []
        if self._state in (self._read_start, self._read_content):
            self._add_content(self._held, deltas)
            if self._is_at_start and self._spaces and not self.num_calls:
                deltas.append(Delta(content=self._spaces))
        self._held = ""
        return deltas

    # --- states: each reads what it can of `_held`, and says whether another has to go on ---

    def _read_start(self, deltas: list[Delta]) -> bool:
        """Calls are the whole output, or there are none."""
        for header, name in self._first.items():
            if self._held.startswith(header):
                return self._begin_call(len(header), name, deltas)
        if any(header.startswith(self._held) for header in self._first):
            return False
        self._state = self._read_content
        return True

    def _read_content(self, deltas: list[Delta]) -> bool:
        """Free text, up to a call."""
        found = self._literals.find(self._held)
        if found is not None:
            at, header = found
            self._add_content(self._held[:at], deltas)
            return self._begin_call(at + len(header), self._first[header], deltas)
        kept = self._literals.num_held(self._held)
        self._add_content(self._held[: len(self._held) - kept], deltas)
        self._held = self._held[len(self._held) - kept :]
        return False

    def _read_arguments(self, deltas: list[Delta]) -> bool:
        end = self._arguments.end_in(self._held)
        taken = self._held if end is None else self._held[:end]
        self._held = self._held[len(taken) :]
        if taken:
            deltas.append(Delta(call=CallDelta(self.num_calls - 1, arguments=taken)))
        if end is None:
            return False
        self._state = self._read_end
        return True

    def _read_end(self, deltas: list[Delta]) -> bool:
        """What closes a call."""
        end = self._syntax.after_arguments
        if len(self._held) < len(end) and end.startswith(self._held):
            return False
        if self._held.startswith(end):
            self._held = self._held[len(end) :]
            self._state = self._read_between if self._syntax.closing or not self._syntax.trigger else self._rest()
        else:
            self._state = self._rest()
        return True

    def _read_between(self, deltas: list[Delta]) -> bool:
        """Another call of the list, or its end."""
        closing = self._syntax.closing
        for header, name in self._next.items():
            if self._held.startswith(header):
                return self._begin_call(len(header), name, deltas)
        if closing and self._held.startswith(closing):
            self._held = self._held[len(closing) :]
        elif any(text.startswith(self._held) for text in (*self._next, closing)):
            return False
        self._state = self._rest()
        return True

    def _rest(self) -> Callable[[list[Delta]], bool]:
        self._spaces, self._is_at_start = None, True
        return self._read_content

    def _begin_call(self, length: int, name: str, deltas: list[Delta]) -> bool:
        self._held = "{" + self._held[length:]
        deltas.append(Delta(call=CallDelta(self.num_calls, self._new_id(), name)))
        self.num_calls += 1
        self._arguments = _JsonObject()
        self._state = self._read_arguments
        return True

    def _add_content(self, text: str, deltas: list[Delta]) -> None:
        if self._is_at_start:
            spaces = text[: len(text) - len(text.lstrip())]
            text = text[len(spaces) :]
            if self._spaces is not None:
                self._spaces += spaces
            if text:
                text = (self._spaces or "") + text
                self._is_at_start, self._spaces = False, None
        if text:
            deltas.append(Delta(content=text))


class Literals:
    """Some texts to be found in a text that comes in pieces. Fast where none is near: all begin alike."""

    def __init__(self, literals: Sequence[str]) -> None:
        self._literals = sorted(literals, key=len, reverse=True)
        first, last = min(literals, default=""), max(literals, default="")
        same = itertools.takewhile(lambda signs: signs[0] == signs[1], zip(first, last))
        self._start = "".join(sign for sign, _ in same)
        assert self._start or not literals, f"texts that have no beginning in common: {literals}"

    def find(self, text: str) -> tuple[int, str] | None:
        """The first of them, and the longest one there, with its place."""
        at = text.find(self._start) if self._literals else -1
        while at >= 0:
            for literal in self._literals:
                if text.startswith(literal, at):
                    return at, literal
            at = text.find(self._start, at + 1)
        return None

    def num_held(self, text: str) -> int:
        """How many characters at the end of `text` may be the beginning of one."""
        if not self._literals:
            return 0
        at = text.find(self._start[0], max(0, len(text) - len(self._literals[0]) + 1))
        while at >= 0:
            rest = text[at:]
            if self._start.startswith(rest) or any(literal.startswith(rest) for literal in self._literals):
                return len(rest)
            at = text.find(self._start[0], at + 1)
        return 0


class _JsonObject:
    """Finds where a JSON object ends."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_text = False
        self._is_escaped = False

    def end_in(self, text: str) -> int | None:
        """The place after the object's last brace in the next piece of its text."""
        for at, sign in enumerate(text):
            if self._is_escaped:
                self._is_escaped = False
            elif self._is_text:
                self._is_escaped = sign == "\\"
                self._is_text = sign != '"'
            elif sign == '"':
                self._is_text = True
            elif sign in "{[":
                self._depth += 1
            elif sign in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return at + 1
        return None
