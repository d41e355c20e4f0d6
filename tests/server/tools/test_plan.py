"""The plan of a request: its one constraint, and the parser of content, reasoning and calls together."""

from __future__ import annotations

import itertools

import pytest

from decodex.server.reasoning import Markers
from decodex.server.tools.plan import plan_output
from decodex.server.tools.request import read_function, read_tool_request
from decodex.server.tools.syntax import FORMATS
from decodex.structured_outputs import StructuredOutputsParams

THINK = Markers("<think>", "</think>")
CHOICE = StructuredOutputsParams(choice=["a", "b"])


class Tokens:
    """A tokenizer with one special token."""

    special_ids = frozenset({0})

    def __init__(self, special: str = "<eos>") -> None:
        self.special = special

    def id_to_token(self, token_id: int) -> str:
        return self.special


def request(choice="auto"):
    return read_tool_request([read_function({"name": "f"}, "tools[0].function")], choice, None)


def plan(tools=None, constraint=None, markers=None, prompt="", name="hermes", special="<eos>"):
    return plan_output(tools, FORMATS[name], markers, constraint, prompt, Tokens(special))


def parse(plan, pieces) -> tuple[str, str, list[str]]:
    parser = plan.parser()
    content, reasoning, calls = "", "", list[str]()
    for delta in [delta for piece in pieces for delta in parser.feed(piece)] + parser.finish():
        content += delta.content
        reasoning += delta.reasoning
        if delta.call is not None:
            calls += [""] * (delta.call.index + 1 - len(calls))
            calls[delta.call.index] += (delta.call.name or "") + delta.call.arguments
    assert parser.num_calls == len(calls)
    assert parser.finish_reason("stop") == ("tool_calls" if calls else "stop")
    assert parser.finish_reason("length") == "length"
    assert parser.finish_reason(None) is None
    return content, reasoning, calls


def test_nothing_to_do_passes_through() -> None:
    for constraint in (None, CHOICE):
        found = plan(constraint=constraint)
        assert found.structured_outputs is constraint
        assert not found.shows_special_tokens
        assert parse(found, ["\n <think>", "<tool_call>"]) == ("\n <think><tool_call>", "", [])
        assert parse(found, []) == ("", "", [])


def test_constraints_that_have_to_be_combined() -> None:
    assert plan(request()).structured_outputs.kind == "structural_tag"
    assert not plan(request()).structured_outputs.finish_within_budget
    assert plan(request("required")).structured_outputs.finish_within_budget
    assert plan(request("none")).structured_outputs is None
    assert plan(request("none"), CHOICE).structured_outputs is CHOICE
    assert plan(constraint=CHOICE, markers=THINK).structured_outputs.kind == "structural_tag"
    assert plan(markers=THINK).structured_outputs is None
    assert plan(constraint=CHOICE, markers=THINK, prompt="<think></think>").structured_outputs is CHOICE
    steered = StructuredOutputsParams(choice=["a"], finish_within_budget=True)
    assert plan(request(), steered).structured_outputs.finish_within_budget


@pytest.mark.parametrize(
    ("tools", "markers", "special", "shows"),
    [
        (request(), None, "<tool_call>", True),
        (request("none"), None, "<tool_call>", False),
        (None, THINK, "</think>", True),
        (None, THINK, "<tool_call>", False),
        (None, None, "</think>", False),
    ],
)
def test_special_tokens_that_are_markers_are_shown(tools, markers, special: str, shows: bool) -> None:
    assert plan(tools, markers=markers, special=special).shows_special_tokens == shows


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ("<think>\n", f"so <tool_call>\n</think>\n\nLet me.{CALL}\n", ("Let me.", "so <tool_call>\n", ['f{"a": 1}'])),
        ("<think>\n", f"so</think>\n\n{CALL}\n{CALL}", ("", "so", ['f{"a": 1}'] * 2)),
        ("<think>\n", "so</think>\n\n", ("", "so", [])),
        ("", f"<think>\nso</think>\n\nyes{CALL}", ("yes", "so", ['f{"a": 1}'])),
        ("", f"\n\n{CALL}", ("", "", ['f{"a": 1}'])),
        ("", "\n\nyes", ("\n\nyes", "", [])),
        ("<think></think>", "\n<think>", ("\n<think>", "", [])),
    ],
)
def test_content_reasoning_and_calls_however_they_are_cut(prompt: str, text: str, expected) -> None:
    found = plan(request(), markers=THINK, prompt=prompt)
    assert parse(found, [text]) == expected
    assert parse(found, text) == expected
    for first, second in itertools.combinations(range(0, len(text), 3), 2):
        assert parse(found, [text[:first], text[first:second], text[second:]]) == expected


def test_a_call_that_is_cut_is_no_call_to_make() -> None:
    parser = plan(request()).parser()
    parser.feed(CALL[:-20])
    assert parser.num_calls == 1
    assert parser.finish_reason("stop") == "stop"
    parser.feed(CALL[-20:])
    assert parser.finish_reason("stop") == "tool_calls"


def test_reasoning_without_tools() -> None:
    found = plan(markers=THINK, prompt="<think>\n")
    assert parse(found, "so</think>\n\n<tool_call>") == ("<tool_call>", "so", [])
