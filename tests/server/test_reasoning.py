"""Reasoning in all pieces: the same split, the same count; how much of it is asked for."""

from __future__ import annotations

import itertools

import jinja2.meta
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodex.errors import RequestError
from decodex.server.reasoning import (
    Markers,
    Reasoning,
    ReasoningParser,
    find_markers,
    num_reasoning_tokens,
    plan_effort,
    reasoning_of,
)

THINK = Markers("<think>", "</think>")
OPEN, POSSIBLE = Reasoning(THINK, True), Reasoning(THINK, False)


def parse(reasoning: Reasoning, pieces) -> tuple[str, str]:
    parser = ReasoningParser(reasoning)
    parts = [*(parser.feed(piece) for piece in pieces), parser.finish()]
    assert all(delta.reasoning and not delta.content for deltas, _ in parts for delta in deltas)
    return "".join(delta.reasoning for deltas, _ in parts for delta in deltas), "".join(rest for _, rest in parts)


@pytest.mark.parametrize(
    ("reasoning", "text", "expected"),
    [
        (OPEN, "\nso\n</think>\n\nyes", ("so\n", "\n\nyes")),
        (OPEN, "never ends </thin", ("never ends </thin", "")),
        (OPEN, "</think>yes", ("", "yes")),
        (OPEN, "", ("", "")),
        (POSSIBLE, "<think>so</think>yes</think>", ("so", "yes</think>")),
        (POSSIBLE, "\n <think>so", ("so", "")),
        (POSSIBLE, "plain <think>x</think>", ("", "plain <think>x</think>")),
        (POSSIBLE, "<thi", ("", "<thi")),
        (POSSIBLE, "  ", ("", "  ")),
        (POSSIBLE, "<think>", ("", "")),
    ],
)
def test_splits(reasoning: Reasoning, text: str, expected: tuple[str, str]) -> None:
    assert parse(reasoning, [text]) == expected
    assert parse(reasoning, text) == expected
    for at in range(len(text)):
        assert parse(reasoning, [text[:at], text[at:]]) == expected


PARTS = ["<think>", "</think>", "<", "</", "think", ">", " ", "\n", "a"]


@given(st.booleans(), st.lists(st.sampled_from(PARTS), max_size=10), st.data())
def test_any_pieces_read_the_same(is_open: bool, parts: list[str], data) -> None:
    text, reasoning = "".join(parts), Reasoning(THINK, is_open)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    assert parse(reasoning, pieces) == parse(reasoning, [text])


@pytest.mark.parametrize(
    ("reasoning", "tokens", "count"),
    [
        (None, ["<think>", "a"], 0),
        (OPEN, ["a", "b", "</think>", "c"], 2),
        (OPEN, ["a", "b</th", "ink>c", "d"], 2),
        (OPEN, ["a", "b"], 2),
        (POSSIBLE, ["<think>", "a", "b", "</think>", "c"], 2),
        (POSSIBLE, ["\n", "<thi", "nk>", "a", "</think>"], 1),
        (POSSIBLE, ["a", "<think>", "b"], 0),
        (POSSIBLE, [], 0),
        (OPEN, ["x" * 20, "</", "think", ">", "</think>"], 3),
    ],
)
def test_tokens_are_counted(reasoning, tokens: list[str], count: int) -> None:
    assert num_reasoning_tokens(range(len(tokens)), lambda i: tokens[i].encode(), reasoning) == count


def test_the_prompt_says_what_is_expected() -> None:
    assert reasoning_of(None, "x<think>\n") is None
    assert reasoning_of(THINK, "assistant\n<think>\n") == OPEN
    assert reasoning_of(THINK, "assistant\n<think>\n\n</think>\n\n") is None
    assert reasoning_of(THINK, "what is <think>?\nassistant\n") == POSSIBLE


def test_markers() -> None:
    assert find_markers("auto", "{{ '</think>' }}") == THINK
    assert find_markers("auto", "[THINK][/THINK]") == Markers("[THINK]", "[/THINK]")
    assert find_markers("auto", "{{ messages }}") is None
    assert find_markers("auto", None) is None
    assert find_markers("none", "</think>") is None
    assert find_markers("think", None) == THINK


def variables_of(template: str) -> set[str]:
    return jinja2.meta.find_undeclared_variables(jinja2.Environment().parse(template))


@pytest.mark.parametrize(
    ("effort", "template", "values", "budget"),
    [
        (None, "</think>", {}, None),
        ("none", "", {}, None),
        ("low", "{{ reasoning_effort }}</think>", {"reasoning_effort": "low"}, None),
        ("none", "{% if enable_thinking %}<think></think>{% endif %}", {"enable_thinking": False}, None),
        ("low", "{% if enable_thinking %}<think></think>{% endif %}", {"enable_thinking": True}, 1024),
        ("high", "{% if thinking %}<think></think>{% endif %}", {"thinking": True}, None),
        ("medium", "<think></think>", {}, 4096),
        ("none", "<think></think>", {}, 0),
    ],
)
def test_effort(effort, template: str, values: dict, budget: int | None) -> None:
    found = plan_effort(effort, variables_of(template), find_markers("auto", template), "reasoning_effort")
    assert (found.template_values, found.max_thinking_tokens) == (values, budget)


@pytest.mark.parametrize(
    ("effort", "template", "text"),
    [
        ("huge", "</think>", r"^reasoning_effort: got 'huge', expected one of none, minimal"),
        ("low", "{{ messages }}", r"^reasoning_effort: got 'low', expected a model that reasons"),
        ("low", "[THINK][/THINK]", r"^reasoning_effort: got 'low', expected high"),
    ],
)
def test_efforts_that_are_refused(effort: str, template: str, text: str) -> None:
    with pytest.raises(RequestError, match=text):
        plan_effort(effort, variables_of(template), find_markers("auto", template), "reasoning_effort")
