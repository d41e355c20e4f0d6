"""Bodies of /v1/responses: which conversation they are, and faults by name."""

from __future__ import annotations

import pytest

from decodex.errors import RequestError
from decodex.server.errors import ApiError
from decodex.server.responses_request import ResponseFields, messages_of, set_sampling, tool_request_of
from decodex.server.sampling import Sampling
from decodex.server.service import parse


def fields(**values) -> ResponseFields:
    return parse(ResponseFields, {"input": "hi", **values})


CALL = {"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "c1", "name": "f", "arguments": "{}"}
REASONING = {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]}
USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("values", "messages"),
    [
        ({}, [USER]),
        ({"instructions": "Be brief."}, [{"role": "system", "content": "Be brief."}, USER]),
        (
            {"instructions": "A", "input": [{"role": "developer", "content": "B"}, USER]},
            [{"role": "system", "content": "A\n\nB"}, USER],
        ),
        (
            {
                "input": [
                    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "h"}] * 2},
                    {"role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": []}]},
                ]
            },
            [{"role": "user", "content": "hh"}, {"role": "assistant", "content": "x"}],
        ),
        (
            {
                "input": [
                    USER,
                    {
                        "type": "reasoning",
                        "id": "rs",
                        "summary": [],
                        "content": [{"type": "reasoning_text", "text": "r"}],
                    },
                    {"role": "assistant", "content": "so"},
                    CALL,
                    {**CALL, "call_id": "c2"},
                    {"type": "function_call_output", "call_id": "c1", "output": "1"},
                    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
                    {**CALL, "call_id": "c3"},
                ]
            },
            [
                USER,
                {
                    "role": "assistant",
                    "content": "so",
                    "reasoning_content": "r",
                    "tool_calls": [
                        {"id": one, "type": "function", "function": {"name": "f", "arguments": "{}"}}
                        for one in ("c1", "c2")
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "1"},
                {"role": "tool", "tool_call_id": "c2", "content": "2"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": "c3", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                },
            ],
        ),
        (
            {"input": [USER, REASONING, CALL]},
            [
                USER,
                {
                    "role": "assistant",
                    "content": "",
                    "reasoning_content": "r",
                    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                },
            ],
        ),
    ],
)
def test_conversations(values, messages) -> None:
    assert messages_of(fields(**values)) == messages


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"input": [{"role": "tool", "content": "x"}]}, r"input\[0\]\.role"),
        ({"input": [{"role": ["user"], "content": "x"}]}, r"input\[0\]\.role"),
        ({"input": [{"role": "user", "content": 1}]}, r"input\[0\]\.content"),
        ({"input": [{"role": "user", "content": [{"type": ["input_text"]}]}]}, r"input\[0\]\.content\[0\]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, r"input\[0\]\.content\[0\]"),
        ({"input": [{"role": "user", "content": "x", "name": "y"}]}, r"input\[0\]\.name"),
        ({"input": [USER, {"type": "item_reference", "id": "x"}]}, r"input\[1\]\.type"),
        ({"input": [{"type": "computer_call"}]}, r"input\[0\]\.type"),
        ({"input": [{**CALL, "arguments": {}}]}, r"input\[0\]\.arguments"),
        ({"input": [{**CALL, "call_id": None}]}, r"input\[0\]\.call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": None}]}, r"input\[0\]\.output"),
        ({"input": [{"type": "reasoning", "content": ["x"]}]}, r"input\[0\]\.content\[0\]"),
        ({"input": [{"type": "reasoning", "encrypted_content": "x"}]}, r"input\[0\]\.encrypted_content"),
    ],
)
def test_items_that_are_refused(values, field: str) -> None:
    with pytest.raises((RequestError, ApiError), match=f"^{field}: "):
        messages_of(fields(**values))


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"background": True}, "background"),
        ({"conversation": "x"}, "conversation"),
        ({"max_tool_calls": 1}, "max_tool_calls"),
        ({"n": 2}, "n"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"response_format": {"type": "text"}}, "response_format"),
        ({"truncation": "auto"}, "truncation"),
        ({"stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, r"stream_options\.include_obfuscation"),
        ({"reasoning": {"summary": "auto"}}, r"reasoning\.summary"),
        ({"text": {"verbosity": "low"}}, r"text\.verbosity"),
        ({"include": ["reasoning.encrypted_content"]}, r"include\[0\]"),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_fields_that_are_refused(values, field: str) -> None:
    with pytest.raises(RequestError, match=f"^{field}: "):
        fields(**values).check()


def test_values_that_ask_for_nothing() -> None:
    fields(
        background=False, n=1, truncation="disabled", text={"verbosity": "medium"}, include=[], top_logprobs=0
    ).check()
    fields(stream=True, stream_options={"include_obfuscation": False}, reasoning={"effort": None}).check()


def test_formats_of_the_text() -> None:
    sampling = Sampling({})
    schema = {"type": "object"}
    format = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    set_sampling(fields(text={"format": format}, max_output_tokens=5), sampling)
    assert sampling.values == {"structured_outputs": {"json": schema}, "max_tokens": 5}
    wrong = sampling.renamed(RequestError("structured_outputs.json", 1, "x"))
    assert wrong.field == "text.format.schema"
    for format, values in (
        ({"type": "text"}, {}),
        ({"type": "json_object"}, {"structured_outputs": {"json_object": True}}),
    ):
        sampling = Sampling({})
        set_sampling(fields(text={"format": format}), sampling)
        assert sampling.values == values
    for format, field in (
        ({"type": "xml"}, r"text\.format\.type"),
        ({"type": "text", "x": 1}, r"text\.format\.x"),
        ({"type": "json_schema", "name": "x"}, r"text\.format\.schema"),
    ):
        with pytest.raises((RequestError, ApiError), match=f"^{field}: "):
            set_sampling(fields(text={"format": format}), Sampling({}))


def test_functions_are_strict_unless_they_say_otherwise() -> None:
    tools = [{"type": "function", "name": "f"}, {"type": "function", "name": "g", "strict": False}]
    request = tool_request_of(fields(tools=tools, tool_choice={"type": "function", "name": "g"}))
    assert request is not None
    assert [tool.strict for tool in request.tools] == [True, False]
    assert [tool.name for tool in request.callable] == ["g"]
    with pytest.raises(RequestError, match=r"^tools\[0\]\.type: got 'web_search'"):
        tool_request_of(fields(tools=[{"type": "web_search"}]))
