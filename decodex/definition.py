"""Frozen option classes defined once: Python arguments, command line flags and docs come from the same fields.

`SamplingParams` and `EngineConfig` are such classes. A field is declared with `option(default, help, ...)`; an
unknown keyword is a `RequestError` that suggests the nearest name.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, TypeVar, dataclass_transform

from decodex.errors import RequestError, nearest_name

__all__ = ["check_bool", "check_int", "check_number", "definition", "from_mapping", "option", "options_of"]

T = TypeVar("T")


def option(
    *,
    default: Any,
    help: str,
    choices: tuple[str, ...] | None = None,
    metavar: str | None = None,
    cli: bool = True,
) -> Any:
    """A field of a definition: its default, one line of help, and how the command line shows it."""
    metadata = {"help": help, "choices": choices, "metavar": metavar, "cli": cli}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option,))
def definition(cls: type[T]) -> type[T]:
    """Make `cls` a frozen keyword-only dataclass whose constructor names a misspelt keyword."""
    made = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    plain_init = made.__init__
    names = [f.name for f in dataclasses.fields(made)]  # type: ignore[arg-type]

    @functools.wraps(plain_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if args:
            raise TypeError(
                f"{cls.__name__} takes keyword arguments only, e.g. {cls.__name__}({names[0]}=...)"
            )
        for key in kwargs:
            if key not in names:
                raise RequestError(key, kwargs[key], f"a field of {cls.__name__}", nearest_name(key, names))
        plain_init(self, **kwargs)

    made.__init__ = init  # type: ignore[method-assign]
    return made


def options_of(cls: type) -> list[dataclasses.Field[Any]]:
    """The fields of a definition, in order."""
    return list(dataclasses.fields(cls))


def from_mapping(cls: type[T], values: dict[str, Any]) -> T:
    """Build a definition from a plain mapping (a JSON body, a config file)."""
    return cls(**values)


def check_bool(field: str, value: Any) -> bool:
    """`value` if it is a bool, else a RequestError."""
    if not isinstance(value, bool):
        raise RequestError(field, value, "true or false")
    return value


def check_int(field: str, value: Any, low: int, high: int | None = None) -> int:
    """`value` as an int within [low, high], else a RequestError (a bool or a fraction is not an int)."""
    bounds = f"an integer >= {low}" if high is None else f"an integer from {low} to {high}"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise RequestError(field, value, bounds)
    number = value.__index__()
    if number < low or (high is not None and number > high):
        raise RequestError(field, value, bounds)
    return int(number)


def check_number(
    field: str, value: Any, low: float, high: float = math.inf, *, open_low: bool = False
) -> float:
    """`value` as a finite float within [low, high] ((low, high] with `open_low`), else a RequestError."""
    left = "(" if open_low else "["
    bounds = (
        f"a finite number in {left}{low:g}, {high:g}]"
        if high != math.inf
        else (f"a finite number {'>' if open_low else '>='} {low:g}")
    )
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise RequestError(field, value, bounds)
    number = float(value)
    if not math.isfinite(number) or number < low or number > high or (open_low and number == low):
        raise RequestError(field, value, bounds)
    return number
