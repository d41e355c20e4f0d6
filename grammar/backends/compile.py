"""One plan, one backend, one compiled grammar; and the two halves of it that a child process shares with us."""

from __future__ import annotations

from decodex.grammar.backends import llguidance, outlines, xgrammar
from decodex.grammar.ebnf import Rules
from decodex.grammar.errors import ConstraintError
from decodex.grammar.forms import Json, LarkText, WholeText
from decodex.grammar.json_lark import JsonPrinter
from decodex.grammar.lark import print_ebnf, print_lark
from decodex.grammar.matcher import CompiledGrammar
from decodex.grammar.pattern import is_nullable, to_rust, without_empty
from decodex.grammar.plan import Plan
from decodex.grammar.tag_lark import print_tags
from decodex.grammar.trial import try_out
from decodex.grammar.vocabulary import GrammarVocabulary

__all__ = ["assemble", "compile_here", "compile_saved", "is_risky", "warm"]

_SMALL_EBNF = 3_000  # characters of EBNF that xgrammar compiles and tries in milliseconds


def is_risky(plan: Plan) -> bool:
    """Whether compiling may take long or much memory: then it is done where it can be killed.

    llguidance counts its own steps and stops; the other two have no limits.
    """
    if plan.backend != "xgrammar" or isinstance(plan.form, Json):
        return plan.backend != "llguidance"
    return len(_ebnf(plan)) > _SMALL_EBNF


def compile_here(plan: Plan, vocabulary: GrammarVocabulary) -> CompiledGrammar:
    """Compile in this thread."""
    if plan.backend == "llguidance":
        return _compile_llguidance(plan, vocabulary)
    if plan.backend == "xgrammar":
        compiled = xgrammar.compile_ebnf(_ebnf(plan), vocabulary)
        xgrammar.probe(compiled, vocabulary)
        return xgrammar.XgrammarGrammar(plan.constraint, vocabulary, compiled)
    return assemble(plan, compile_saved(plan, vocabulary), vocabulary)


def warm(backend: str, vocabulary: GrammarVocabulary) -> None:
    """Import a library and build its tokenizer: seconds, once, that belong to no constraint."""
    if backend == "xgrammar":
        xgrammar.compile_ebnf('root ::= "a"', vocabulary)
    else:
        outlines.vocabulary_of(vocabulary)


def compile_saved(plan: Plan, vocabulary: GrammarVocabulary) -> bytes:
    """What a child process compiles, as bytes."""
    if plan.backend == "xgrammar":
        compiled = xgrammar.compile_ebnf(_ebnf(plan), vocabulary)
        xgrammar.probe(compiled, vocabulary)
        return xgrammar.save(compiled)
    return outlines.save(outlines.compile_regex(_regex(plan), vocabulary))


def assemble(plan: Plan, saved: bytes, vocabulary: GrammarVocabulary) -> CompiledGrammar:
    """The compiled grammar from what `compile_saved` gave."""
    if plan.backend == "xgrammar":
        return xgrammar.XgrammarGrammar(plan.constraint, vocabulary, xgrammar.load(saved, vocabulary))
    has_empty = isinstance(plan.form, WholeText) and is_nullable(plan.form.pattern)
    return outlines.OutlinesGrammar(plan.constraint, vocabulary, saved, has_empty)


def _compile_llguidance(plan: Plan, vocabulary: GrammarVocabulary) -> CompiledGrammar:
    form = plan.form
    markers = frozenset[int]()
    if plan.constraint.kind == "structural_tag":
        assert not isinstance(form, LarkText)
        lark, markers = print_tags(form, vocabulary)
        text = lark
    elif isinstance(form, Json) and form.is_beyond:
        printer = JsonPrinter(form.schema, form.whitespace)
        text = "\n".join([f"start: {printer.start}", *printer.rules, ""])
    elif isinstance(form, Json):
        return llguidance.compile_json(form.schema, form.whitespace, plan.constraint, vocabulary)
    elif isinstance(form, WholeText):
        text = f"start: /{to_rust(form.pattern)}/"
    elif isinstance(form, Rules):
        text = print_lark(form)
    elif isinstance(form, LarkText):
        text = form.text
    else:
        raise AssertionError(f"{type(form).__name__} is not a whole output")
    if not isinstance(form, Rules | LarkText):
        return llguidance.compile_lark(text, plan.constraint, vocabulary, markers)
    grammar = llguidance.compile_lark(text, plan.constraint, vocabulary, is_bounded=True)
    try_out(grammar, vocabulary)
    return grammar


def _ebnf(plan: Plan) -> str:
    form = plan.form
    if isinstance(form, Json):
        return xgrammar.json_ebnf(form.schema, form.whitespace)
    if isinstance(form, WholeText):
        return print_ebnf(Rules((("root", form.pattern),)))
    assert isinstance(form, Rules), f"{type(form).__name__} is not for xgrammar"
    return print_ebnf(form)


def _regex(plan: Plan) -> str:
    form = plan.form
    if isinstance(form, Json):
        return outlines.json_regex(form.schema, form.whitespace)
    assert isinstance(form, WholeText), f"{type(form).__name__} is not for outlines"
    pattern = without_empty(form.pattern)
    if pattern is None:
        raise ConstraintError("only the empty text is a member, which outlines can't express")
    return to_rust(pattern)
