"""A choice among exact texts, as a pattern."""

from __future__ import annotations

import json

from decodex.grammar.errors import ConstraintError
from decodex.grammar.limits import MAX_CHOICE_LENGTH, MAX_CHOICES, check_size, check_text
from decodex.grammar.pattern import EMPTY, Choice, Pattern, Text

__all__ = ["parse_choices", "read_choices"]


def read_choices(text: str) -> list[str]:
    """The texts of a JSON list, without doubles, in order; ConstraintError where it is none, or empty."""
    check_text(text)
    try:
        choices = json.loads(text)
    except ValueError as error:
        raise ConstraintError(f"the choices are not a JSON list: {error}") from None
    if not isinstance(choices, list) or not choices:
        raise ConstraintError("expected at least one choice")
    for index, choice in enumerate(choices):
        if not isinstance(choice, str):
            raise ConstraintError(f"choice {index} is {type(choice).__name__}, expected text")
        check_text(choice)
        check_size(f"characters in choice {index}", len(choice), MAX_CHOICE_LENGTH)
    check_size("choices", len(choices), MAX_CHOICES)
    return list(dict.fromkeys(choices))


def parse_choices(text: str) -> Pattern:
    """The pattern of a JSON list of texts."""
    parts = tuple(Text(choice) if choice else EMPTY for choice in read_choices(text))
    return parts[0] if len(parts) == 1 else Choice(parts)
