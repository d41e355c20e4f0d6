"""How models write tool calls: each format is one record of markers, read by the constraint, the parser and the prompt.

A text with calls is: an opening, a call, (separator, call)*, the closing; a call is `before_name` NAME
`before_arguments` JSON-OBJECT `after_arguments`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["FORMATS", "TOOL_CALL_FORMATS", "CallSyntax", "find_syntax"]


@dataclass(frozen=True)
class CallSyntax:
    """The markers of one format, as its models were trained on them (JSON with ", " and ": " between)."""

    name: str
    before_name: str
    before_arguments: str
    after_arguments: str
    separator: str
    openings: tuple[str, ...] = ("",)  # any one of them
    closing: str = ""
    trigger: str = ""  # calls may follow free text, and begin with this; "" if calls are the whole output
    id_length: int | None = None  # of a call's id, where templates insist on one
    is_single: bool = False  # templates refuse several calls in one message

    def header(self, name: str) -> str:
        """A call's text up to its arguments."""
        return f"{self.before_name}{name}{self.before_arguments}"

    def write(self, calls: Sequence[tuple[str, str]]) -> str:
        """The text of (name, JSON arguments) pairs."""
        texts = [f"{self.header(name)}{arguments}{self.after_arguments}" for name, arguments in calls]
        return f"{self.openings[0]}{self.separator.join(texts)}{self.closing}"

    @property
    def markers(self) -> tuple[str, ...]:
        """Every literal text of the format."""
        parts = (*self.openings, self.before_name, self.before_arguments, self.after_arguments, self.separator)
        return tuple(part for part in (*parts, self.closing) if part)


_HERMES = CallSyntax(
    name="hermes",
    before_name='<tool_call>\n{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}\n</tool_call>",
    separator="\n",
    trigger="<tool_call>",
)
_LLAMA3 = CallSyntax(
    name="llama3",
    before_name='{"name": "',
    before_arguments='", "parameters": ',
    after_arguments="}",
    separator="; ",
    openings=("", "<|python_tag|>"),
    is_single=True,
)
_MISTRAL = CallSyntax(
    name="mistral",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    separator=", ",
    openings=("[TOOL_CALLS][",),
    closing="]",
    trigger="[TOOL_CALLS]",
    id_length=9,
)
_MISTRAL_SPACED = CallSyntax(
    name="mistral",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    separator=", ",
    openings=("[TOOL_CALLS] [",),
    closing="]",
    trigger="[TOOL_CALLS]",
    id_length=9,
)
_MISTRAL_ARGS = CallSyntax(
    name="mistral",
    before_name="[TOOL_CALLS]",
    before_arguments="[ARGS]",
    after_arguments="",
    separator="",
    trigger="[TOOL_CALLS]",
    id_length=9,
)
_JSON = CallSyntax(
    name="json",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    separator=", ",
    openings=('{"tool_calls": [',),
    closing="]}",
)

FORMATS = {syntax.name: syntax for syntax in (_HERMES, _LLAMA3, _MISTRAL, _JSON)}
TOOL_CALL_FORMATS = ("auto", *FORMATS)


def find_syntax(wanted: str, template: str | None) -> CallSyntax:
    """The format of this name; for "auto" the one that a chat template writes, else generic JSON."""
    name, text = wanted, template or ""
    if wanted == "auto":
        if "[TOOL_CALLS]" in text:
            name = "mistral"
        elif "<tool_call>" in text:
            name = "hermes"
        elif "<|python_tag|>" in text or re.search(r'"parameters\\?":', text):
            name = "llama3"
        else:
            name = "json"
    if name == "mistral" and "[ARGS]" in text:
        return _MISTRAL_ARGS
    if name == "mistral" and "[TOOL_CALLS] [" in text:
        return _MISTRAL_SPACED
    return FORMATS[name]
