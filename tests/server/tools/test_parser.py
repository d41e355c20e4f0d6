"""Tool-call text in all pieces: the same calls and content, never more held back than a header."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodex.server.tools.delta import CallDelta, Delta
from decodex.server.tools.parser import ToolParser, fitting_id, new_call_id
from decodex.server.tools.syntax import FORMATS, find_syntax

NAMES = ("f", "get_weather", "math.add")
MISTRAL_ARGS = find_syntax("mistral", "[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}")
MISTRAL_SPACED = find_syntax("mistral", "[TOOL_CALLS] [")
SYNTAXES = {**FORMATS, "mistral_args": MISTRAL_ARGS, "mistral_spaced": MISTRAL_SPACED}
CALLS = [("get_weather", '{"city": "Pa\\"ris}]", "a": [{"b": {}}, 1]}'), ("f", "{}"), ("math.add", '{"x": "\\\\"}')]
every_syntax = pytest.mark.parametrize("syntax", SYNTAXES.values(), ids=SYNTAXES)


def parse(syntax, pieces: Iterable[str], **options):
    """(content, [(id, name, arguments)]) as a client puts deltas together."""
    ids = itertools.count()
    parser = ToolParser(syntax, NAMES, lambda: f"id{next(ids)}", **options)
    deltas = [delta for piece in pieces for delta in parser.feed(piece)] + parser.finish()
    content, calls = "", list[list]()
    for delta in deltas:
        assert bool(delta.content) + bool(delta.reasoning) + (delta.call is not None) == 1
        content += delta.content
        if delta.call is not None:
            if delta.call.index == len(calls):
                assert delta.call.id
                assert delta.call.name
                calls.append([delta.call.id, delta.call.name, ""])
            else:
                assert delta.call.index == len(calls) - 1
                assert delta.call.id is None
                assert delta.call.name is None
                assert delta.call.arguments
            calls[delta.call.index][2] += delta.call.arguments
    assert parser.num_calls == len(calls)
    return content, [tuple(call) for call in calls]


def every_split_in_two(text: str):
    return ([text[:at], text[at:]] for at in range(len(text) + 1))


@every_syntax
@pytest.mark.parametrize("count", [1, 2, 3])
def test_calls_are_read_however_the_text_is_cut(syntax, count: int) -> None:
    text = syntax.write(CALLS[:count])
    expected = ("", [(f"id{index}", *call) for index, call in enumerate(CALLS[:count])])
    assert parse(syntax, [text]) == expected
    assert parse(syntax, text) == expected
    for pieces in every_split_in_two(text):
        assert parse(syntax, pieces) == expected


def test_arguments_stream_as_they_come() -> None:
    syntax = FORMATS["hermes"]
    parser = ToolParser(syntax, NAMES, lambda: "id")
    assert parser.feed('<tool_call>\n{"name": "f", "arguments": ') == []
    assert parser.feed('{"a') == [
        Delta(call=CallDelta(0, "id", "f")),
        Delta(call=CallDelta(0, arguments='{"a')),
    ]
    assert parser.feed('": 1') == [Delta(call=CallDelta(0, arguments='": 1'))]
    assert parser.feed("}}\n</tool_call>") == [Delta(call=CallDelta(0, arguments="}"))]
    assert parser.finish() == []


@pytest.mark.parametrize("name", ["hermes", "mistral", "mistral_args", "mistral_spaced"])
def test_text_before_and_after(name: str) -> None:
    syntax = SYNTAXES[name]
    text = f"Let me see. {syntax.write(CALLS)}\n\nDone."
    calls = [(f"id{index}", *call) for index, call in enumerate(CALLS)]
    for pieces in every_split_in_two(text):
        assert parse(syntax, pieces) == ("Let me see. Done.", calls)
    assert parse(syntax, f"\n\n{syntax.write(CALLS)}") == ("", calls)


@pytest.mark.parametrize("name", ["llama3", "json"])
def test_formats_in_which_calls_are_the_whole_output(name: str) -> None:
    syntax = SYNTAXES[name]
    for text in (f"x{syntax.write(CALLS)}", '{"name": 1}', syntax.openings[0] + '{"name": "other", ', ""):
        for pieces in every_split_in_two(text):
            assert parse(syntax, pieces) == (text, [])


def test_llama_after_its_special_token() -> None:
    text = "<|python_tag|>" + FORMATS["llama3"].write(CALLS[:2])
    assert parse(FORMATS["llama3"], text) == ("", [("id0", *CALLS[0]), ("id1", *CALLS[1])])


@every_syntax
def test_a_cut_anywhere_gives_the_beginning(syntax) -> None:
    """What was cut inside a call's arguments is its beginning; what was cut in a first header is content."""
    text = syntax.write(CALLS[:2])
    for end in range(len(text)):
        content, calls = parse(syntax, text[:end])
        assert [call[2] for call in calls] == [full[1][: len(call[2])] for call, full in zip(calls, CALLS)]
        if not calls:
            assert content == text[:end]


@every_syntax
@pytest.mark.parametrize("text", ["  ", "\n", " a ", "plain", "<tool", "[TOOL_CALLS", "<tool_call>\n{}", "\n<think>"])
def test_text_that_is_no_call_is_content(syntax, text: str) -> None:
    assert parse(syntax, [text]) == (text, [])
    assert parse(syntax, text) == (text, [])


def test_leading_whitespace_can_be_left_out() -> None:
    for pieces in every_split_in_two("\n\n hello \n"):
        assert parse(FORMATS["hermes"], pieces, skips_whitespace=True) == ("hello \n", [])
    assert parse(FORMATS["hermes"], "\n ", skips_whitespace=True) == ("", [])


ALPHABET = ["<tool_call>", '\n{"name": "', "f", '", "arguments": {', "}", "\n</tool_call>", "[TOOL_CALLS]", "[ARGS]{"]
ALPHABET += ['{"tool_calls": [', '{"name": "', '", "parameters": {', "]", "]}", "; ", ", ", "\n", "a", '"', "\\", " "]


@given(st.sampled_from(list(SYNTAXES)), st.lists(st.sampled_from(ALPHABET), max_size=16), st.data())
def test_any_text_in_any_pieces_reads_the_same(name: str, parts: list[str], data) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]
    expected = parse(SYNTAXES[name], [text])
    assert parse(SYNTAXES[name], pieces) == expected
    assert parse(SYNTAXES[name], text) == expected


json_objects = st.dictionaries(
    st.text(max_size=4),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)


@given(
    st.sampled_from(list(SYNTAXES)),
    st.lists(st.tuples(st.sampled_from(NAMES), json_objects), min_size=1, max_size=3),
    st.booleans(),
)
def test_what_is_written_is_read(name: str, wanted, is_ascii: bool) -> None:
    calls = [(function, json.dumps(value, ensure_ascii=is_ascii)) for function, value in wanted]
    text = SYNTAXES[name].write(calls)
    assert parse(SYNTAXES[name], text) == ("", [(f"id{index}", *call) for index, call in enumerate(calls)])


@given(st.lists(st.sampled_from(ALPHABET), max_size=12))
def test_less_than_a_header_is_held_back(parts: list[str]) -> None:
    parser = ToolParser(FORMATS["hermes"], NAMES)
    shown = sum(len(delta.content) for sign in "x" + "".join(parts) for delta in parser.feed(sign))
    if not parser.num_calls:
        longest = max(len(FORMATS["hermes"].header(name)) for name in NAMES)
        assert 1 + len("".join(parts)) - shown <= longest


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ '<tool_call>' }}", "hermes"),
        ("[TOOL_CALLS]", "mistral"),
        ('{"name": x, "parameters": y}', "llama3"),
        ("<|python_tag|>", "llama3"),
        ("{{ messages }}", "json"),
        (None, "json"),
    ],
)
def test_the_template_says_which_format(template: str | None, expected: str) -> None:
    assert find_syntax("auto", template).name == expected
    assert find_syntax("json", template).name == "json"


def test_ids() -> None:
    assert len({new_call_id(FORMATS["json"]) for _ in range(100)}) == 100
    assert len(new_call_id(FORMATS["mistral"])) == 9
    assert new_call_id(FORMATS["mistral"]).isalnum()
    assert fitting_id(FORMATS["json"], "call_x") == "call_x"
    assert fitting_id(FORMATS["mistral"], "abcdefgh1") == "abcdefgh1"
    other = fitting_id(FORMATS["mistral"], "call_abcdef")
    assert len(other) == 9
    assert other == fitting_id(FORMATS["mistral"], "call_abcdef")
