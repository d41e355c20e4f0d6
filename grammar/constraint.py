"""What a request asks of its output: one frozen value, and the key of the cache of compiled grammars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from decodex.grammar.errors import ConstraintError

__all__ = ["BACKENDS", "KINDS", "WHITESPACE", "Constraint", "Kind"]

Kind = Literal["json", "json_object", "regex", "choice", "grammar", "structural_tag"]
KINDS: tuple[str, ...] = get_args(Kind)
BACKENDS = ("auto", "llguidance", "xgrammar", "outlines")
WHITESPACE = ("spaced", "compact", "flexible")


@dataclass(frozen=True)
class Constraint:
    """One constraint. All kinds but `structural_tag` describe the whole output.

    text: the JSON text of the schema (json), "" (json_object), the regex, the JSON list of the choices, the text of
    the grammar (EBNF, GBNF or Lark), or the JSON text of the structural tag.
    whitespace: "spaced" (", " and ": "), "compact" ("," and ":") or "flexible" (bounded runs of whitespace).
    """

    kind: Kind
    text: str
    backend: str = "auto"
    whitespace: str = "spaced"

    def __post_init__(self) -> None:
        for name, value, known in (
            ("kind", self.kind, KINDS),
            ("backend", self.backend, BACKENDS),
            ("whitespace", self.whitespace, WHITESPACE),
        ):
            if value not in known:
                raise ConstraintError(f"{name} is {value!r}, expected one of {', '.join(known)}")
        if not isinstance(self.text, str):
            raise ConstraintError(f"the constraint's text is {type(self.text).__name__}, expected str")

    @property
    def is_whole_output(self) -> bool:
        """Whether the whole output must be a member, rather than parts of free text."""
        return self.kind != "structural_tag"
