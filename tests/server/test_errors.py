"""Whatever is wrong with a request: 4xx in OpenAI's shape that names the field, and the server goes on."""

from __future__ import annotations

import asyncio

import pytest
from http_client import CHAT, COMPLETIONS, error_of, post_all, toy_server

MESSAGES = [{"role": "user", "content": "bcd"}]


def chat(**fields):
    return {"messages": MESSAGES, "max_tokens": 2, **fields}


def completion(**fields):
    return {"prompt": "bcd", "max_tokens": 2, **fields}


CASES = [
    # body, param, part of the message
    (CHAT, chat(temprature=1), "temprature", "did you mean 'temperature'?"),
    (CHAT, chat(temperature=-1), "temperature", "expected a finite number >= 0"),
    (CHAT, chat(temperature="1"), "temperature", "got '1'"),
    (CHAT, chat(temperature=True), "temperature", "got True"),
    (CHAT, chat(n=0), "n", "expected an integer from 1"),
    (CHAT, chat(n=200), "n", "got 200"),
    (CHAT, {"messages": []}, "messages", "at least 1"),
    (CHAT, {"max_tokens": 2}, "messages", "is missing"),
    (CHAT, {"messages": "bcd"}, "messages", "valid list"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content", "got None"),
    (CHAT, {"messages": [{"content": "b"}]}, "messages[0].role", "is missing"),
    (CHAT, {"messages": [{"role": "robot", "content": "b"}]}, "messages[0].role", "got 'robot'"),
    (CHAT, {"messages": [{"role": "user", "content": "b", "nme": "x"}]}, "messages[0].nme", "no such field"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0].type",
        "'image_url'",
    ),
    (CHAT, {"messages": [{"role": "user", "content": "b" * 300}]}, "messages", "at most 255 tokens"),
    (CHAT, {"messages": MESSAGES * 600}, "messages", "got '600 items'"),
    (CHAT, {"messages": [{"role": "user", "content": "b" * 100_000}]}, "messages", "got '100000 characters'"),
    (COMPLETIONS, {"prompt": "b" * 100_000}, "prompt", "got '100000 characters'"),
    (COMPLETIONS, {"prompt": [[1], [1] * 600]}, "prompt[1]", "got '600 items'"),
    (CHAT, chat(max_tokens=0), "max_tokens", "got 0"),
    (CHAT, chat(max_completion_tokens=9999, max_tokens=None), "max_completion_tokens", "at most 253 here"),
    (CHAT, chat(max_completion_tokens=3), "max_tokens", "beside max_completion_tokens = 3"),
    (CHAT, chat(logprobs=5), "logprobs", "valid boolean"),
    (CHAT, chat(top_logprobs=2), "top_logprobs", "where logprobs is not true"),
    (CHAT, chat(logprobs=True, top_logprobs=21), "top_logprobs", "at most 20 on this server"),
    (CHAT, chat(logprobs=True, top_logprobs=-1), "top_logprobs", "at most 20 on this server"),
    (CHAT, chat(prompt_logprobs=21), "prompt_logprobs", "at most 20 on this server"),
    (CHAT, chat(logit_bias={"x": 1}), "logit_bias key", "got 'x'"),
    (CHAT, chat(logit_bias={"9" * 5000: 1}), "logit_bias key", "an integer"),
    (CHAT, chat(logit_bias={"99": 1}), "logit_bias[99]", "99"),
    (CHAT, chat(stop=[""]), "stop[0]", "got ''"),
    (CHAT, chat(store=True), "store", "stores nothing"),
    (CHAT, chat(previous_response_id="x"), "previous_response_id", "stores nothing"),
    (CHAT, chat(user=5), "user", "a text"),
    (CHAT, chat(metadata={"a": 1}), "metadata", "a mapping of texts to texts"),
    (CHAT, chat(service_tier="flex"), "service_tier", "'auto' or 'default'"),
    (CHAT, chat(modalities=["audio"]), "modalities", "the model writes text"),
    (CHAT, chat(audio={}), "audio", "the model writes text"),
    (CHAT, chat(functions=[]), "functions", "write tools"),
    (CHAT, chat(verbosity="low"), "verbosity", "'medium'"),
    (CHAT, chat(reasoning_effort="high"), "reasoning_effort", "a model that reasons"),
    (CHAT, chat(guided_json={}), "guided_json", "write structured_outputs"),
    (CHAT, chat(mirostat_mode=2), "mirostat_mode", "min_p"),
    (CHAT, chat(use_beam_search=True), "use_beam_search", "beam search"),
    (CHAT, chat(logits_processors=["x"]), "logits_processors", "a Python object"),
    (CHAT, chat(prompt_cache_key=""), "prompt_cache_key", "1 to 1024"),
    (CHAT, chat(prompt_cache_key="a", cache_salt="b"), "cache_salt", "one of"),
    (CHAT, chat(priority="high"), "priority", "an integer"),
    (CHAT, chat(stream_options={"include_usage": True}), "stream_options", "where stream is not true"),
    (CHAT, chat(stream=True, stream_options={"usage": True}), "stream_options.usage", "no such field"),
    (
        CHAT,
        chat(stream=True, stream_options={"include_obfuscation": True}),
        "stream_options.include_obfuscation",
        "padded",
    ),
    (CHAT, chat(response_format="json"), "response_format", "json_object, json_schema"),
    (CHAT, chat(response_format={"type": "xml"}), "response_format", "json_object, json_schema"),
    (CHAT, chat(response_format={"type": "json_object", "x": 1}), "response_format.x", "one of type"),
    (CHAT, chat(response_format={"type": "json_schema"}), "response_format.json_schema", "name and schema"),
    (
        CHAT,
        chat(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "objec"}}}),
        "response_format.json_schema.schema",
        "type must be one of",
    ),
    (
        CHAT,
        chat(response_format={"type": "json_object"}, structured_outputs={"regex": "a"}),
        "structured_outputs",
        "beside",
    ),
    (CHAT, chat(structured_outputs={"regx": "a"}), "structured_outputs.regx", "did you mean 'regex'?"),
    (CHAT, chat(structured_outputs={"regex": "("}), "structured_outputs.regex", "a constraint that can be honoured"),
    (CHAT, chat(structured_outputs={}), "structured_outputs", "exactly one of"),
    (CHAT, chat(speculative={"metod": "ngram"}), "speculative.metod", "did you mean 'method'?"),
    (CHAT, chat(prediction={"type": "content"}), "prediction", "'content'"),
    (CHAT, chat(prediction={"type": "content", "content": [{"type": "image"}]}), "prediction.content[0]", "text"),
    (CHAT, chat(tools=[{"type": "function"}]), "tools[0].function", "is missing"),
    (CHAT, chat(tools=[{"type": "web_search"}]), "tools[0].type", "'function'"),
    (CHAT, chat(tool_choice="required"), "tool_choice", "no tools"),
    (CHAT, chat(chat_template_kwargs={"messages": 1}), "chat_template_kwargs.messages", "got 'messages'"),
    (CHAT, chat(allowed_token_ids=[1], bad_words=["b"]), "allowed_token_ids", "no token is left"),
    (COMPLETIONS, {"max_tokens": 2}, "prompt", "is missing"),
    (COMPLETIONS, completion(prompt=""), "prompt", "at least one character"),
    (COMPLETIONS, completion(prompt=[]), "prompt", "0 prompts"),
    (COMPLETIONS, completion(prompt=["b"] * 300), "prompt", "300 prompts"),
    (COMPLETIONS, completion(prompt=[[1], [99]]), "prompt[1][0]", "got 99"),
    (COMPLETIONS, completion(prompt=["b", ""]), "prompt[1]", "at least one character"),
    (COMPLETIONS, completion(prompt=[1, "b"]), "prompt[1]", "an integer"),
    (COMPLETIONS, completion(prompt=["b", 1]), "prompt[1]", "a text, as prompt[0] is"),
    (COMPLETIONS, completion(prompt=[True]), "prompt[0]", "got True"),
    (COMPLETIONS, completion(prompt=[1.5]), "prompt[0]", "got 1.5"),
    (COMPLETIONS, completion(prompt={"a": 1}), "prompt", "got {'a': 1}"),
    (COMPLETIONS, completion(prompt="b\ud800"), "prompt", "surrogates"),
    (COMPLETIONS, completion(suffix="b"), "suffix", "fills no gaps"),
    (COMPLETIONS, completion(best_of=2), "best_of", "rank them by cumulative_logprob"),
    (COMPLETIONS, completion(max_tokens=0), "max_tokens", "got 0"),
    (COMPLETIONS, completion(logprobs=True), "logprobs", "valid integer"),
    (COMPLETIONS, completion(messages=MESSAGES), "messages", "a field of a completion"),
    (COMPLETIONS, [], "body", "a JSON object"),
    (COMPLETIONS, None, "body", "a JSON object"),
    ("/tokenize", {}, "prompt", "one of prompt and messages"),
    ("/tokenize", {"prompt": "b\ud800"}, "prompt", "surrogates"),
    ("/tokenize", {"messages": []}, "messages", "at least 1"),
    ("/detokenize", {"tokens": [99]}, "tokens[0]", "from 0 to 11"),
    ("/detokenize", {"tokens": "b"}, "tokens", "valid list"),
]


def test_every_mistake_is_a_400_that_names_the_field():
    for path in dict.fromkeys(path for path, *_ in CASES):
        cases = [case for case in CASES if case[0] == path]
        responses = post_all(path, [body for _, body, _, _ in cases])
        for response, (_, body, param, part) in zip(responses, cases, strict=True):
            assert response.status_code == 400, (body, response.text)
            error = error_of(response)
            assert error["param"] == param, (body, error)
            assert part in error["message"], (body, error)
            assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b"{", 400, "invalid_json"),
        (b'{"prompt": "b", "prompt": "c"}', 400, "invalid_json"),
        (b"\xff\xfe", 400, "invalid_json"),
        (b"[" * 100_000, 400, "invalid_json"),
        (b'{"prompt": ' + b"[" * 128 + b"]" * 128 + b"}", 400, "invalid_json"),
        (b'{"prompt": ' + b'{"a":' * 500 + b"1" + b"}" * 501, 400, "invalid_json"),
        (b'{"prompt": ' + b"9" * 5_000 + b"}", 400, "invalid_json"),
        (b'{"prompt": "' + b"b" * 3_000 + b'"}', 413, "body_too_large"),
    ],
)
def test_bodies_that_are_no_json_or_too_long(content, status, code):
    async def main():
        async with toy_server({"max_body_bytes": 2048 if status == 413 else 1 << 20}) as toy:
            headers = {"content-type": "application/json"}
            first = await toy.http.post(COMPLETIONS, content=content, headers=headers)

            async def pieces():  # no Content-Length
                for at in range(0, len(content), 1000):
                    yield content[at : at + 1000]

            return first, await toy.http.post(COMPLETIONS, content=pieces(), headers=headers)

    for response in asyncio.run(main()):
        assert response.status_code == status, response.text
        assert error_of(response)["code"] == code


def test_paths_methods_and_media_types():
    async def main():
        async with toy_server() as toy:
            return [
                await toy.http.post("/v1/nothing", json={}),
                await toy.http.get(CHAT),
                await toy.http.post(CHAT, content=b"{}", headers={"content-type": "text/plain"}),
                await toy.http.get("/v1/models/other"),
                await toy.post(CHAT, chat(model="other")),
            ]

    responses = asyncio.run(main())
    assert [response.status_code for response in responses] == [404, 405, 415, 404, 404]
    assert [error_of(response)["code"] for response in responses[2:]] == [
        "unsupported_media_type",
        "model_not_found",
        "model_not_found",
    ]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/responses", "/tokenize"])
def test_values_that_are_nested_as_deep_as_bodies_may_be(path):
    """A RecursionError somewhere below, which is nobody's refusal, was a 500."""
    own = {CHAT: {"messages": MESSAGES}, COMPLETIONS: {"prompt": "b"}, "/v1/responses": {"input": "b"}}.get(path, {})
    bodies = []
    for make in (lambda inner: [inner], lambda inner: {"a": inner}):
        value = 1
        for _ in range(120):
            value = make(value)
        tool = {
            "type": "function",
            "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": value}}},
        }
        schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"a": value}}}
        fields = {
            "messages": value,
            "prompt": value,
            "chat_template_kwargs": {"x": value},
            "tools": [tool],
            "response_format": schema,
            "structured_outputs": {"structural_tag": {"format": value}},
            "speculative": {"tree": value},
            "prediction": value,
            "metadata": {"a": value},
        }
        bodies += [{**own, name: field} for name, field in fields.items()]
    for response in post_all(path, bodies, {"max_tokens_limit": 5}):
        assert response.status_code in (200, 400), response.text


def test_null_is_absent():
    from decodex.server.chat_request import ChatFields
    from decodex.server.sampling import TABLE

    nulls = {
        name: None for name in [*ChatFields.model_fields, *TABLE] if name not in ("messages", "max_tokens", "seed")
    }
    plain, with_nulls = post_all(CHAT, [chat(seed=1), {**nulls, **chat(seed=1)}])
    assert with_nulls.status_code == 200, with_nulls.text
    assert with_nulls.json()["choices"] == plain.json()["choices"]
