"""SmolLM2-135M under constraints: every kind of schema at temperature 1 in a batch of 8, judged by another library."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest

from decodex import LLM, SamplingParams
from decodex.errors import ModelError
from decodex.models.source import resolve_model

pytestmark = pytest.mark.real_model

TEXT = {"type": "string"}
SCHEMAS = {
    "person": {
        "type": "object",
        "properties": {"name": TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 150}, "email": TEXT},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "list": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}}}, "maxItems": 4},
    "enums": {"enum": ["red", 3, None, {"a": [1]}, "grün"]},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"},
    "date": {"type": "object", "properties": {"when": {"type": "string", "format": "date"}}, "required": ["when"]},
    "choice": {"anyOf": [{"type": "boolean"}, {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 3}]},
    "tree": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"v": TEXT, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
                "required": ["v"],
                "additionalProperties": False,
            }
        },
    },
    "open": {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3},
}


@pytest.fixture(scope="module")
def llm():
    try:
        folder = str(resolve_model("smollm2-135m").path)
    except ModelError as error:
        pytest.skip(f"the demo model can't be fetched here: {error}")
    return LLM(folder, kv_cache_gib=0.2, max_num_seqs=8)


def answers(llm, requests, max_tokens):
    prompts, params = [], []
    for seed, (name, constraint) in enumerate(requests):
        question = f"Give me an example of a JSON document ({name})."
        prompts.append(llm.tokenizer.apply_chat_template([{"role": "user", "content": question}]))
        params.append(SamplingParams(seed=seed, max_tokens=max_tokens, structured_outputs=constraint))
    return llm.generate(prompts, params, use_tqdm=False)


@pytest.mark.parametrize("is_steered", [False, True])
def test_what_stops_validates(llm, is_steered):
    requests = [(name, {"json": schema, "finish_within_budget": is_steered}) for name, schema in SCHEMAS.items()]
    outputs = answers(llm, requests, 40)
    for (name, constraint), output in zip(requests, outputs, strict=True):
        choice = output.outputs[0]
        assert output.error is None, (name, output.error)
        assert choice.finish_reason in (("stop",) if is_steered else ("stop", "length")), name
        if choice.finish_reason == "stop":
            assert choice.check == "passed", name
            value = json.loads(choice.text)
            jsonschema_rs.validator_for(constraint["json"], validate_formats=True).validate(value)
            assert choice.parsed == value
    assert llm.engine.verdicts.num_mismatches == 0
    assert sum(output.outputs[0].finish_reason == "stop" for output in outputs) >= 3


def test_a_mixed_batch_gives_each_what_it_gets_alone(llm):
    constraints = [
        {"json": SCHEMAS["person"]},
        {"regex": "(cat|dog)s? and [a-z]{3,8}s", "backend": "outlines"},
        {"choice": ["glacier", "volcano", "sea"]},
        {"grammar": 'root ::= word (" " word){2,4} "."\nword ::= [a-z]+', "backend": "xgrammar"},
        {"json_object": True, "whitespace": "compact"},
        None,
    ]
    requests = list(enumerate(constraints))
    together = answers(llm, requests, 24)
    for place in (0, 1, 2, 3, 4, 5):
        seed = SamplingParams(seed=place, max_tokens=24, structured_outputs=constraints[place])
        [alone] = llm.generate([together[place].prompt_token_ids], [seed], use_tqdm=False)
        assert alone.outputs[0].text == together[place].outputs[0].text
    assert together[2].outputs[0].text in ("glacier", "volcano", "sea")
