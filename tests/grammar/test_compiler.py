"""The compiler: cached by the whole constraint, once per key, bounded in bytes and time, cancelled with its request."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from toy_grammars import VOCABULARY, accepts

from decodex.grammar import compiler as module
from decodex.grammar.backends import xgrammar
from decodex.grammar.backends.compile import compile_here, compile_saved
from decodex.grammar.compiler import GrammarCompiler
from decodex.grammar.constraint import Constraint
from decodex.grammar.errors import ConstraintError
from decodex.grammar.plan import plan_of
from decodex.grammar.vocabulary import GrammarVocabulary

SLOW = Constraint("regex", "(a|b)*a(a|b){22}", "outlines")  # four million states


@pytest.fixture
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(VOCABULARY, timeout=1.0)
    yield made
    made.close()


def test_the_same_constraint_gives_the_same_grammar(compiler: GrammarCompiler) -> None:
    first = compiler.compile(Constraint("regex", "a+"))
    assert compiler.compile(Constraint("regex", "a+")) is first
    assert first.backend == "llguidance"
    named = compiler.compile(Constraint("regex", "a+", "outlines"))
    assert named.backend == "outlines", "an earlier request pins nothing"
    assert compiler.compile(Constraint("regex", "a+")) is first
    assert compiler.compile(Constraint("regex", "a+", whitespace="compact")) is not first


def test_least_recently_used_goes_first() -> None:
    compiler = GrammarCompiler(VOCABULARY, max_cache_bytes=1)
    size = compiler.compile(Constraint("regex", "a")).num_bytes
    assert len(compiler.cache) == 0, "larger than the whole cache"
    compiler.close()
    compiler = GrammarCompiler(VOCABULARY, max_cache_bytes=2 * size + 1000)
    a, b, c = (Constraint("regex", sign) for sign in "abc")
    grammars = {k: compiler.compile(k) for k in (a, b)}
    compiler.compile(a)
    compiler.compile(c)
    assert compiler.cache.get(a) is grammars[a]
    assert compiler.cache.get(b) is None
    assert compiler.cache.num_bytes <= 2 * size + 1000
    assert accepts(grammars[b], "b"), "who holds it keeps it"
    compiler.close()


def test_threads_that_ask_for_one_constraint_share_its_compilation(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = module.compile_here, []

    def counting(plan, vocabulary):
        calls.append(plan)
        time.sleep(0.1)
        return real(plan, vocabulary)

    monkeypatch.setattr(module, "compile_here", counting)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: compiler.compile(Constraint("regex", "[ab]{3}")), range(8)))
    assert len(calls) == 1
    assert len(set(map(id, found))) == 1


def test_a_failure_is_shared_and_not_kept(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(plan, vocabulary):
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(module, "compile_here", broken)
        with pytest.raises(ConstraintError, match="MemoryError: no room"):
            compiler.compile(Constraint("regex", "ab"))
    assert accepts(compiler.compile(Constraint("regex", "ab")), "ab")


def test_what_takes_too_long_is_killed(compiler: GrammarCompiler) -> None:
    """outlines-core has no limit; its process ends, and the next one is compiled."""
    good = Constraint("regex", "[ab]c", "outlines")
    assert accepts(compiler.compile(good), "ac"), "also starts the process"
    child = compiler._child._process
    assert child is not None
    started = time.monotonic()
    with pytest.raises(ConstraintError, match="longer than 1 seconds"):
        compiler.compile(SLOW)
    assert time.monotonic() - started < 3
    assert child.poll() is not None, "it was not killed"
    assert accepts(compiler.compile(Constraint("regex", "b", "outlines")), "b")


def test_what_takes_long_at_single_tokens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """xgrammar has no limit there either: its process tries the longest tokens before a grammar is handed over."""
    plan = plan_of(Constraint("grammar", 'root ::= "a" root | "b"', "xgrammar"))
    compile_saved(plan, VOCABULARY)
    monkeypatch.setattr(xgrammar, "_MAX_SECONDS", 0.0)
    with pytest.raises(ConstraintError, match="too long for single tokens"):
        compile_saved(plan, VOCABULARY)


def test_a_cancelled_request_waits_no_longer(compiler: GrammarCompiler) -> None:
    compiler.compile(Constraint("regex", "a", "outlines"))
    compiler._timeout = 60.0
    cancelled = threading.Event()
    threading.Timer(0.3, cancelled.set).start()
    started = time.monotonic()
    with pytest.raises(ConstraintError, match="cancelled"):
        compiler.compile(SLOW, cancelled)
    assert time.monotonic() - started < 2
    assert accepts(compiler.compile(Constraint("regex", "b", "outlines")), "b"), "its process was freed at once"


def test_closed(compiler: GrammarCompiler) -> None:
    compiler.close()
    with pytest.raises(ConstraintError, match="closed"):
        compiler.compile(Constraint("regex", "a"))


@pytest.mark.parametrize(
    ("field", "value"), [("kind", "jsn"), ("backend", "outline"), ("whitespace", "none"), ("text", None)]
)
def test_a_constraint_with_a_wrong_field_is_refused(field: str, value: object) -> None:
    fields = {"kind": "regex", "text": "a", field: value}
    with pytest.raises(ConstraintError, match=field):
        Constraint(**fields)  # type: ignore[arg-type]


def test_nothing_to_write() -> None:
    """A vocabulary that can't spell any member: refused, not a dead end at the first token."""
    small = GrammarVocabulary([b"<eos>", b"a"], frozenset({0}), frozenset({0}), lambda text: [])
    for backend in ("llguidance", "xgrammar", "outlines"):
        with pytest.raises(ConstraintError, match=r"nothing can be written|vocabulary provided is incompatible"):
            compile_here(plan_of(Constraint("regex", "b", backend)), small)
    matcher = compile_here(plan_of(Constraint("regex", "ab|aa", "outlines")), small).matcher()
    assert matcher.accept(1)
    assert matcher.accept(1), "the dead alternative is pruned, the other one lives"
