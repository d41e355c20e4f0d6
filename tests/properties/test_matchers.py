"""Matchers as state machines: masks against enumerated members (K5), rollback, fork and draft against a fresh replay
(K11), a way to the end from every state (K6), and neighbours that do not feel each other (K8)."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from toy_grammars import BACKENDS, VOCABULARY, check_finite, compiled, mask_of, replayed

from decodex.grammar.backends.compile import compile_here
from decodex.grammar.budget import BudgetSteering
from decodex.grammar.constraint import Constraint
from decodex.grammar.draft import fill_draft
from decodex.grammar.errors import ConstraintError, MatcherError
from decodex.grammar.forms import WholeText
from decodex.grammar.matcher import CompiledGrammar, Matcher
from decodex.grammar.pattern import EMPTY, Chars, Choice, Concat, Pattern, Repeat, Text
from decodex.grammar.plan import Plan

TEXTS = st.text(st.sampled_from('abc01"{: é]'), max_size=4)
CHARS = st.sampled_from([((97, 99),), ((97, 97), (99, 99)), ((48, 49), (233, 233)), ((34, 34),)])
PATTERNS = st.recursive(
    st.one_of(TEXTS.map(lambda t: Text(t) if t else EMPTY), CHARS.map(Chars)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: Concat(tuple(parts))),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: Choice(tuple(parts))),
        st.tuples(inner, st.integers(0, 2), st.integers(0, 2)).map(lambda p: Repeat(p[0], p[1], p[1] + p[2])),
    ),
    max_leaves=6,
)
MAX_MEMBERS = 400
# endless and nested ones, for state machines
POOL = [
    ("regex", r"(ab|a)*c?|\d{2}"),
    ("regex", '"[^"]{0,3}"'),
    ("grammar", 'root ::= "(" root ")" root | [a-b]{0,2}'),
    ("choice", '["aaa", "aa", "abc", "true", "né"]'),
    ("json", '{"type": "object", "properties": {"a": {"enum": ["a", true]}, "b": {"type": "array"}}}'),
]


def members_of(pattern: Pattern) -> set[str] | None:
    """Every member of a finite pattern, by definition; None for more than MAX_MEMBERS (repeats of repeats explode)."""
    if isinstance(pattern, Text):
        return {pattern.text}
    if isinstance(pattern, Chars):
        return {chr(code) for first, last in pattern.ranges for code in range(first, last + 1)}
    if isinstance(pattern, Choice):
        rows = [members_of(part) for part in pattern.parts]
        return None if None in rows else bounded(set().union(*rows))
    if isinstance(pattern, Concat):
        row: set[str] | None = {""}
        for part in pattern.parts:
            row = products(row, members_of(part))
        return row
    assert isinstance(pattern, Repeat)
    assert pattern.high is not None
    found: set[str] = set()
    row, part = {""}, members_of(pattern.part)
    for times in range(pattern.high + 1):
        if row is None:
            return None
        found |= row if times >= pattern.low else set()
        row = products(row, part)
    return bounded(found)


def products(row: set[str] | None, part: set[str] | None) -> set[str] | None:
    if row is None or part is None or len(row) * len(part) > 100 * MAX_MEMBERS:
        return None
    return bounded({a + b for a in row for b in part})


def bounded(members: set[str]) -> set[str] | None:
    return members if len(members) <= MAX_MEMBERS else None


def pool_grammars() -> list[CompiledGrammar]:
    found = []
    for kind, text in POOL:
        for backend in BACKENDS if kind in ("regex", "choice") else ("llguidance", "xgrammar"):
            if kind == "json":
                continue
            found.append(compiled(kind, text, backend))
    return found


GRAMMARS = pool_grammars()


@settings(max_examples=10)
@given(PATTERNS, st.randoms(use_true_random=False))
@example(Repeat(Choice((Text("0"), Repeat(Text("0"), 0, 0))), 0, 2), random.Random(0))
def test_masks_of_random_patterns_equal_their_members(pattern: Pattern, rng: random.Random) -> None:
    members = members_of(pattern)
    if members is None:
        return
    for backend in BACKENDS:
        if backend == "outlines" and members == {""}:
            continue
        plan = Plan(Constraint("regex", "", backend), backend, WholeText(pattern))
        check_finite(compile_here(plan, VOCABULARY), [m.encode() for m in members], rng, walks=2)


def same_state(one: Matcher, other: Matcher) -> None:
    assert mask_of(one) == mask_of(other)
    assert (one.is_accepting, one.is_terminated) == (other.is_accepting, other.is_terminated)
    assert one.forced_text() == other.forced_text()


@settings(max_examples=25)
@given(st.sampled_from(GRAMMARS), st.randoms(use_true_random=False), st.booleans())
def test_any_script_ends_where_a_replay_ends(grammar: CompiledGrammar, rng: random.Random, steered: bool) -> None:
    """Accepted, illegal, rolled back, forked, filled in between, in any order; under the budget's steering too."""

    def begin() -> Matcher:
        return BudgetSteering(grammar.matcher(), VOCABULARY, 40) if steered else grammar.matcher()

    matcher, path = begin(), list[int]()
    for _ in range(rng.randint(1, 25)):
        action = rng.random()
        legal = sorted(mask_of(matcher) - VOCABULARY.eos_token_ids)
        if action < 0.55 and legal and len(path) < 30:
            path.append(rng.choice(legal))
            assert matcher.accept(path[-1])
        elif action < 0.7:
            illegal = rng.randrange(VOCABULARY.size)
            if illegal not in legal and not steered:
                assert not matcher.accept(illegal)
        elif action < 0.85 and path:
            count = rng.randint(1, len(path))
            matcher.rollback(count)
            del path[-count:]
        else:
            twin = matcher.fork()
            if legal and twin.accept(legal[0]) and rng.random() < 0.5:
                twin.rollback(1)
                matcher = twin
    fresh = begin()
    assert all(fresh.accept(token) for token in path)
    same_state(matcher, fresh)
    with pytest.raises(MatcherError):
        matcher.rollback(len(path) + 1)


@settings(max_examples=25)
@given(st.sampled_from(GRAMMARS), st.randoms(use_true_random=False))
def test_drafts_are_replays_of_their_root_paths(grammar: CompiledGrammar, rng: random.Random) -> None:
    matcher, path = grammar.matcher(), list[int]()
    for _ in range(rng.randint(0, 4)):
        legal = sorted(mask_of(matcher) - VOCABULARY.eos_token_ids)
        if legal:
            path.append(rng.choice(legal))
            matcher.accept(path[-1])
    tokens: list[int] = []
    parents: list[int] = []
    for node in range(rng.randint(0, 8)):
        parents.append(rng.randrange(-1, node) if rng.random() < 0.7 else node - 1)
        above = root_path(parents, tokens, parents[-1])
        try:
            legal = sorted(mask_of(replayed(grammar, path + above)))
        except AssertionError:
            legal = []
        tokens.append(rng.choice(legal) if legal and rng.random() < 0.8 else rng.randrange(VOCABULARY.size))
    rows = np.full((1 + len(tokens), VOCABULARY.num_words), -1, dtype=np.int32)
    before = mask_of(matcher)
    is_legal = fill_draft(matcher, tokens, parents, rows)
    assert set(VOCABULARY.unpack(rows[0])) == before == mask_of(matcher)
    for node, parent in enumerate(parents):
        fresh = replayed(grammar, path)
        wanted = all(fresh.accept(token) for token in [*root_path(parents, tokens, parent), tokens[node]])
        assert is_legal[node] == wanted
        assert set(VOCABULARY.unpack(rows[1 + node])) == (mask_of(fresh) if wanted else set())


def root_path(parents: list[int], tokens: list[int], node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(tokens[node])
        node = parents[node]
    return path[::-1]


def fewest_tokens(member: bytes) -> int:
    """The least number of tokens that spell a text, by dynamic programming."""
    known = {token for _, token in VOCABULARY.text_tokens()}
    best = [0] + [10**9] * len(member)
    for end in range(1, len(member) + 1):
        best[end] = min(best[start] + 1 for start in range(max(0, end - 6), end) if member[start:end] in known)
    return best[-1]


WORST = {
    "whitespace": lambda token: -token.count(b" "),
    "digits": lambda token: -sum(48 <= b <= 57 for b in token),
    "opening": lambda token: -sum(b in b'([{"' for b in token),
    "longest": lambda token: -len(token),
    "letters": lambda token: -token.isalpha(),
}


@settings(max_examples=20)
@given(PATTERNS, st.integers(0, 3), st.randoms(use_true_random=False))
def test_a_worst_model_ends_within_the_shortest_bound(pattern: Pattern, more: int, rng: random.Random) -> None:
    members = members_of(pattern)
    if members is None:
        return
    grammar = compile_here(Plan(Constraint("regex", ""), "llguidance", WholeText(pattern)), VOCABULARY)
    bound = min(fewest_tokens(member.encode()) for member in members)
    needed = BudgetSteering(grammar.matcher(), VOCABULARY, 100).num_needed
    assert needed is not None
    assert bound <= needed <= 2 * bound + 4, "an upper bound, and not far above"
    steering = BudgetSteering(grammar.matcher(), VOCABULARY, needed + more)
    for _ in range(needed + more):
        legal = mask_of(steering)
        assert legal, "a dead end"
        text = sorted(legal - VOCABULARY.eos_token_ids)
        if not text:
            break
        dislike = rng.choice(sorted(WORST))
        assert steering.accept(min(text, key=lambda i: WORST[dislike](VOCABULARY.tokens[i])))
    assert steering.is_accepting


@pytest.mark.parametrize("dislike", sorted(WORST))
@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda g: f"{g.constraint.kind}-{g.backend}")
def test_a_worst_model_ends_within_any_budget(grammar: CompiledGrammar, dislike: str) -> None:
    """Endless languages: whatever the model prefers, and whatever the budget, the text is complete at its end."""
    needed = BudgetSteering(grammar.matcher(), VOCABULARY, 100).num_needed
    assert needed is not None
    for max_tokens in (max(1, needed), needed + 1, needed + 7, 60):
        steering = BudgetSteering(grammar.matcher(), VOCABULARY, max_tokens)
        for _ in range(max_tokens):
            text = sorted(mask_of(steering) - VOCABULARY.eos_token_ids)
            if not text:
                break
            assert steering.accept(min(text, key=lambda i: WORST[dislike](VOCABULARY.tokens[i])))
        assert steering.is_accepting


def test_from_every_state_the_end_is_near() -> None:
    """K6: random walks leave something legal and a known way out everywhere."""
    rng = random.Random(3)
    search = BudgetSteering(GRAMMARS[0].matcher(), VOCABULARY, 10)._search
    for grammar in GRAMMARS:
        for _ in range(5):
            matcher, length = grammar.matcher(), 0
            for length in range(15):
                way = search.shortest(matcher, 200)
                assert way is not None
                assert len(way) <= length + 4, "each token of these grammars opens at most one thing"
                legal = sorted(mask_of(matcher) - VOCABULARY.eos_token_ids)
                assert legal or matcher.is_accepting
                if not legal or not matcher.accept(rng.choice(legal)):
                    break


def test_threads_do_not_feel_each_other() -> None:
    """Matchers of one compiled grammar walk in eight threads as they walk alone."""

    def walk(job: tuple[CompiledGrammar, int]) -> list[set[int]]:
        grammar, seed = job
        rng = random.Random(seed)
        matcher, seen = grammar.matcher(), []
        for _ in range(20):
            seen.append(mask_of(matcher))
            legal = sorted(seen[-1] - VOCABULARY.eos_token_ids)
            if not legal:
                break
            matcher.accept(rng.choice(legal))
            if rng.random() < 0.2:
                matcher = matcher.fork()
        return seen

    jobs = [(grammar, seed) for grammar in GRAMMARS for seed in range(6)]
    alone = [walk(job) for job in jobs]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(walk, jobs)) == alone


def test_good_and_bad_constraints_in_any_order() -> None:
    """K8: a refused constraint leaves nothing behind."""
    bad = [("regex", "(a"), ("choice", "[]"), ("grammar", 'root ::= "a" root'), ("json", "{"), ("structural_tag", "[]")]
    for kind, text in bad * 2:
        with pytest.raises(ConstraintError):
            compiled(kind, text)
        check_finite(compiled("choice", '["ab", "b"]'), [b"ab", b"b"], random.Random(0))
