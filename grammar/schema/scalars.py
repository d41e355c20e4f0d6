"""The last word on numbers and strings of one alternative: bounds tightened, contradictions found, values left out."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor
from typing import Any

from decodex.grammar.errors import ConstraintError
from decodex.grammar.schema.conjunction import Conjunction
from decodex.grammar.schema.keywords import fraction
from decodex.grammar.schema.numbers import MAX_DIGITS, is_bound, needs_regex
from decodex.grammar.schema.patterns import anything_but, length_regex, matches

__all__ = ["number_leaves", "string_leaves"]

MAX_EXCLUDED = 16
MAX_BANNED = 100  # characters of a string that is left out
MAX_STEP = 20_000  # digits of a multipleOf: a backend keeps a remainder for each


def number_leaves(conj: Conjunction) -> list[dict[str, Any]]:
    """Alternatives for the numbers, as keywords; none where no number is left. A `type` says which are whole."""
    step = conj.multiple
    is_whole = conj.is_integer or (step is not None and step.denominator == 1)
    banned = sorted({v for v in conj.excluded if isinstance(v, (int, float)) and not isinstance(v, bool)})
    if len(banned) > MAX_EXCLUDED:
        raise ConstraintError("too many numbers are excluded", keyword="not")
    spans = [(conj.low, conj.high)]
    for value in banned:
        spans = [piece for low, high in spans for piece in ((low, _least(high, value)), (_most(low, value), high))]
    if is_whole:
        return [leaves for span in spans if (leaves := _whole(span, step)) is not None]
    return [{"type": "number", **leaves} for span in spans for leaves in _real(span, step)]


def _least(high: Any, value: float) -> Any:
    return (value, True) if high is None or value <= high[0] else high


def _most(low: Any, value: float) -> Any:
    return (value, True) if low is None or value >= low[0] else low


def _whole(span: tuple[Any, Any], step: Fraction | None) -> dict[str, Any] | None:
    """Keywords for the whole numbers of a span."""
    low = None if span[0] is None else floor(fraction(span[0][0])) + 1 if span[0][1] else ceil(fraction(span[0][0]))
    high = None if span[1] is None else ceil(fraction(span[1][0])) - 1 if span[1][1] else floor(fraction(span[1][0]))
    size = 1 if step is None else step.numerator
    check_step(size)
    if low is not None and high is not None and (low > high or -(-low // size) * size > high):
        return None
    leaves: dict[str, Any] = {"type": "integer"}
    leaves.update({} if low is None else {"minimum": low})
    leaves.update({} if high is None else {"maximum": high})
    for key in ("minimum", "maximum"):
        if abs(leaves.get(key, 0)) >= 10**MAX_DIGITS:
            raise ConstraintError(f"the {key} has more than {MAX_DIGITS:,} digits", keyword=key)
    if size > 1 and needs_regex(leaves):
        raise ConstraintError("multipleOf beside bounds that no double holds is not supported", keyword="multipleOf")
    return leaves if size == 1 else {**leaves, "multipleOf": size}


def _real(span: tuple[Any, Any], step: Fraction | None) -> list[dict[str, Any]]:
    """Keywords for the numbers of a span; one alternative per count of decimals where there is a step."""
    low, high = span
    if low is not None and high is not None and (low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1]))):
        return []
    leaves: dict[str, Any] = {}
    if low is not None:
        leaves["exclusiveMinimum" if low[1] else "minimum"] = low[0]
    if high is not None:
        leaves["exclusiveMaximum" if high[1] else "maximum"] = high[0]
    for key, value in leaves.items():
        if not is_bound(value):
            reason = f"the bound {value!r:.40} of numbers with fractions is beyond what backends take exactly"
            raise ConstraintError(reason, keyword=key)
    if step is None:
        return [leaves]
    digits = next((d for d in range(20) if (step * 10**d).denominator == 1), None)
    if digits is None:
        raise ConstraintError("this multipleOf is not supported", keyword="multipleOf")
    check_step((step * 10**digits).numerator)
    steps = {_common(step, Fraction(1, 10**d)) for d in range(digits + 1)}
    return [{**leaves, "multipleOf": _decimal(one)} for one in sorted(steps)]


def check_step(size: int) -> None:
    """Refuse a step with too many remainders."""
    if size > MAX_STEP:
        raise ConstraintError("this multipleOf has too many digits", keyword="multipleOf")


def _common(one: Fraction, other: Fraction) -> Fraction:
    merged = Conjunction(multiple=one)
    merged.add(("multiple", other))
    assert merged.multiple is not None
    return merged.multiple


def _decimal(value: Fraction) -> float:
    return int(value) if value.denominator == 1 else float(value)


def string_leaves(conj: Conjunction) -> dict[str, Any] | None:
    """Keywords for the strings, `pattern` with a list of whole-text regexes; None where no string is left."""
    low, high = conj.min_length, conj.max_length
    regexes = list(dict.fromkeys(conj.regexes))
    if high is not None and low > high:
        return None
    for regex, error in conj.not_regexes:
        if regex in regexes:
            return None
        raise error
    if high == 0:
        is_legal = all(matches(regex, "") for regex in regexes) and "" not in conj.excluded
        return {"type": "string", "maxLength": 0} if is_legal else None
    banned = [v for v in conj.excluded if isinstance(v, str) and all(matches(regex, v) for regex in regexes)]
    banned = [v for v in banned if low <= len(v) and (high is None or len(v) <= high)]
    if any(len(v) > MAX_BANNED for v in banned):
        raise ConstraintError(f"excluding a string longer than {MAX_BANNED} is not supported", keyword="not")
    if banned == [""] and not regexes:
        low = max(low, 1)
    elif banned:
        regexes.append(anything_but(sorted(set(banned))))
    if high is not None and low > high:
        return None
    leaves: dict[str, Any] = {"type": "string"}
    if regexes and len(regexes) > 1 and (low or high is not None):
        regexes, low, high = [*regexes, length_regex(low, high)], 0, None
    leaves.update({"minLength": low} if low else {})
    leaves.update({} if high is None else {"maxLength": high})
    leaves.update({"pattern": regexes} if regexes else {})
    return leaves
