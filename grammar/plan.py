"""From a constraint to what one backend compiles: kind, dialect, bounds and route are settled here.

`auto` takes llguidance for JSON schemas (by the routing table of `schema`), regular expressions, choices, Lark, tags,
and EBNF too: xgrammar compiles and masks most EBNF faster, but has no limits, and single tokens of ambiguous grammars
and single masks inside a quoted text took it from 20 ms to 10 s. evals/maskbench measures the pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

from decodex.grammar.choices import parse_choices
from decodex.grammar.constraint import Constraint
from decodex.grammar.ebnf import Rules, is_ebnf, parse_ebnf
from decodex.grammar.errors import ConstraintError
from decodex.grammar.forms import Json, LarkText, WholeText
from decodex.grammar.inline import inlined
from decodex.grammar.iteration import iterated
from decodex.grammar.lark import check_lark, is_lark
from decodex.grammar.limits import check_text
from decodex.grammar.regexes import parse_regex
from decodex.grammar.schema.prepare import check_backend, prepare_schema, route
from decodex.grammar.tags import Item, parse_tags

__all__ = ["Form", "Plan", "plan_of"]

_MAX_INLINED = 2_000  # parts of a grammar that is given to a backend as a regular expression


Form = Json | WholeText | Rules | LarkText | Item


@dataclass(frozen=True)
class Plan:
    """What to compile, with which backend ("llguidance", "xgrammar" or "outlines")."""

    constraint: Constraint
    backend: str
    form: Form


def plan_of(constraint: Constraint) -> Plan:
    """Parse and check a constraint, and choose its backend. ConstraintError says what is wrong and where."""
    check_text(constraint.text)
    if constraint.kind == "json":
        return _plan_json(constraint, constraint.text)
    if constraint.kind == "json_object":
        return _plan_json(constraint, '{"type": "object"}')
    if constraint.kind == "grammar":
        return _plan_grammar(constraint)
    if constraint.kind == "structural_tag":
        return _plan_tags(constraint)
    parse = parse_regex if constraint.kind == "regex" else parse_choices
    return Plan(constraint, _named(constraint, "llguidance"), WholeText(parse(constraint.text)))


def _plan_json(constraint: Constraint, text: str) -> Plan:
    prepared = prepare_schema(text)
    if constraint.backend == "auto":
        backend = route(prepared)
    else:
        backend = constraint.backend
        check_backend(prepared, backend)
    return Plan(constraint, backend, Json(prepared.schema, constraint.whitespace, prepared.is_beyond))


def _plan_grammar(constraint: Constraint) -> Plan:
    if is_ebnf(constraint.text):
        rules = iterated(parse_ebnf(constraint.text))
        backend = _named(constraint, "llguidance")
        if backend == "xgrammar":
            return Plan(constraint, backend, rules)
        pattern = inlined(rules, _MAX_INLINED)
        if backend == "outlines" and pattern is None:
            raise ConstraintError("outlines takes regular languages only, and this grammar is recursive or too large")
        return Plan(constraint, backend, rules if pattern is None else WholeText(pattern))
    if is_lark(constraint.text):
        if constraint.backend not in ("auto", "llguidance"):
            raise ConstraintError(f"Lark grammars are compiled by llguidance, not by {constraint.backend}")
        return Plan(constraint, "llguidance", LarkText(check_lark(constraint.text)))
    raise ConstraintError("expected EBNF (a rule 'root ::= ...') or Lark (a rule 'start: ...')")


def _plan_tags(constraint: Constraint) -> Plan:
    backend = _named(constraint, "llguidance")
    if backend != "llguidance":
        raise ConstraintError(f"structural tags are compiled by llguidance, not by {backend}")
    return Plan(constraint, backend, parse_tags(constraint.text, constraint.whitespace))


def _named(constraint: Constraint, default: str) -> str:
    return default if constraint.backend == "auto" else constraint.backend
