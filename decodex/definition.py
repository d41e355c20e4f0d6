"""Frozen option classes defined once: Python arguments, command line flags and docs come from the same fields.

`SamplingParams` and `EngineConfig` are such classes. A field is declared with `option(default, help, ...)`; an
unknown keyword is a `RequestError` that suggests the nearest name, one that is refused on purpose says why.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, dataclass_transform

from decodex.errors import RequestError, nearest_name

__all__ = [
    "FILE_OR_TEXT",
    "Refusal",
    "check_bool",
    "check_int",
    "check_number",
    "definition",
    "from_mapping",
    "option",
    "options_of",
    "run_checks",
]

T = TypeVar("T")

FILE_OR_TEXT = "FILE|TEXT"  # metavar of a text for which the command line takes the name of a file that holds it, too
FP32_MAX = 3.4028234663852886e38  # parameters become fp32 on the device
FP32_MIN = 1.1754943508222875e-38


class Refusal(NamedTuple):
    """A keyword that is known and not offered: why, and the values that ask for nothing (accepted, no effect)."""

    reason: str
    off: tuple[Any, ...] = (None,)


def option(
    *,
    default: Any,
    help: str,
    choices: tuple[str, ...] | None = None,
    metavar: str | None = None,
    cli: bool = True,
    check: Callable[[str, Any], Any] | None = None,
    step: str = "",
    formula: str = "",
) -> Any:
    """A field of a definition: its default, one line of help, and how the command line shows it.

    `check(field, value)` returns the value in its one spelling or raises RequestError; its `expected` and `off`
    attributes, the `step` of the row pipeline and the `formula` go into docs/parameters.md.
    """
    metadata = {
        "help": help,
        "choices": choices,
        "metavar": metavar,
        "cli": cli,
        "check": check,
        "step": step,
        "formula": formula,
    }
    return dataclasses.field(default=default, metadata=metadata)


def run_checks(instance: Any) -> None:
    """Replace each field that has a check by what the check returns (called by a definition's __post_init__)."""
    prefix = getattr(instance, "prefix", "")
    for field in options_of(type(instance)):
        check = field.metadata.get("check")
        if check is not None:
            value = check(f"{prefix}{field.name}", getattr(instance, field.name))
            object.__setattr__(instance, field.name, value)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option,))
def definition(cls: type[T]) -> type[T]:
    """Make `cls` a frozen keyword-only dataclass whose constructor names a misspelt keyword.

    A class attribute `refused` (name -> Refusal) lists keywords that are refused by name; `prefix` stands before the
    names of fields in errors (a definition that is itself a field's value).
    """
    prefix: str = getattr(cls, "prefix", "")
    refused: Mapping[str, Refusal] = getattr(cls, "refused", {})
    made = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    plain_init = made.__init__
    names = [f.name for f in dataclasses.fields(made)]  # type: ignore[arg-type]

    @functools.wraps(plain_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if args:
            raise TypeError(f"{cls.__name__} takes keyword arguments only, e.g. {cls.__name__}({names[0]}=...)")
        for key in [key for key in kwargs if key not in names]:
            value = kwargs.pop(key)
            if key not in refused:
                raise RequestError(prefix + key, value, f"a field of {cls.__name__}", nearest_name(key, names))
            if not any(value is off or (type(value) is type(off) and value == off) for off in refused[key].off):
                raise RequestError(key, value, "to be absent", refused[key].reason)
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
    try:
        number = value.__index__()
    except TypeError:  # an array of several
        raise RequestError(field, value, bounds) from None
    if number < low or (high is not None and number > high):
        raise RequestError(field, value, bounds)
    return int(number)


def check_number(field: str, value: Any, low: float, high: float = math.inf, *, open_low: bool = False) -> float:
    """`value` as a finite float within [low, high] ((low, high] with `open_low`), else a RequestError."""
    left = "(" if open_low else "["
    bounds = (
        f"a finite number in {left}{low:g}, {high:g}]"
        if high != math.inf
        else (f"a finite number {'>' if open_low else '>='} {low:g}")
    )
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise RequestError(field, value, bounds)
    try:
        number = float(value)
    except (OverflowError, ValueError, TypeError, RuntimeError):  # too large, an array of several
        raise RequestError(field, value, bounds) from None
    if not math.isinf(number) and abs(number) > FP32_MAX:
        bounds += f", at most {FP32_MAX:.3g}"
    if not abs(number) <= FP32_MAX or number < low or number > high or (open_low and number - low < FP32_MIN):
        raise RequestError(field, value, bounds)
    return number
