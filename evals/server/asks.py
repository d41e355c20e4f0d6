"""Random requests of a soak: every endpoint, parameters, constraints, tools, speculation, mistakes, and how long the
client stays."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CHAT", "COMPLETIONS", "RESPONSES", "Ask", "Asker"]

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
TEXTS = (
    "What is a glacier?",
    "Once upon a time there was a small house by the sea, and in it lived",
    "List some colours.",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "Write a letter to a friend about the weather, the garden and the long way home.",
    'Describe a city as JSON with its name and its population, such as {"name": "Rome", "population": 2800000}.',
)
Draw = Callable[[random.Random], Any]
PARAMETERS: Mapping[str, Draw] = {
    "temperature": lambda rng: rng.choice([0.0, 0.3, 0.8, 1.0, 1.5]),
    "top_p": lambda rng: rng.choice([0.5, 0.9, 1.0]),
    "top_k": lambda rng: rng.choice([1, 20, 200]),
    "min_p": lambda rng: rng.choice([0.02, 0.2]),
    "typical_p": lambda rng: rng.choice([0.5, 0.95]),
    "top_n_sigma": lambda rng: rng.choice([1.0, 2.5]),
    "eta_cutoff": lambda rng: rng.choice([0.0003, 0.01]),
    "xtc_probability": lambda rng: rng.choice([0.2, 0.5]),
    "dynatemp_range": lambda rng: rng.choice([0.2, 0.5]),
    "repetition_penalty": lambda rng: rng.choice([0.9, 1.1, 1.5]),
    "frequency_penalty": lambda rng: rng.choice([-0.5, 0.5]),
    "presence_penalty": lambda rng: rng.choice([-0.5, 0.5]),
    "penalty_last_n": lambda rng: rng.choice([8, 64]),
    "dry_multiplier": lambda rng: rng.choice([0.5, 2.0]),
    "n": lambda rng: rng.choice([1, 2, 3]),
    "prompt_logprobs": lambda rng: rng.choice([0, 2]),
    "skip_special_tokens": lambda rng: rng.choice([True, False]),
    "prediction": lambda rng: rng.choice(TEXTS),
    "priority": lambda rng: rng.randint(-2, 2),
    "cache_salt": lambda rng: rng.choice("ab"),
    "user": lambda rng: "someone",
    "speculative": lambda rng: rng.choice(
        [
            False,
            True,
            {"method": "suffix"},
            {"method": "ngram", "num_speculative_tokens": 3},
            {"method": "suffix", "tree": {"num_children": 2, "max_nodes": 6}},
            {"cascade": ["forced", "suffix"], "control": False},
            {"method": "suffix", "verification": "rejection"},
        ]
    ),
}
# these could leave no token, or are refused, beside a constraint of the whole output
FREE_PARAMETERS: Mapping[str, Draw] = {
    "stop": lambda rng: rng.choice([["."], ["the", "\n\n"], " a"]),
    "bad_words": lambda rng: rng.choice([["the"], ["sea", "house"]]),
    "no_repeat_ngram_size": lambda rng: rng.choice([3, 4]),
    "min_tokens": lambda rng: rng.choice([1, 8]),
    "ignore_eos": lambda rng: rng.choice([True, False]),
    "repetition_stop": lambda rng: rng.choice([3, 4]),
    "logit_bias": lambda rng: {str(rng.randrange(200)): rng.choice([-5.0, 3.0])},
}
MISTAKES: tuple[Mapping[str, Any], ...] = (
    {"temprature": 1.0},
    {"temperature": -1},
    {"top_p": "high"},
    {"structured_outputs": {"regex": "("}},
    {"structured_outputs": {"json": {"type": "object", "patternProperties": {"(": {}}}}},
    {"structured_outputs": {"regex": "a", "choice": ["a"]}},
    {"guided_json": {}},
    {"speculative": {"method": "guess"}},
    {"model": "another"},
    {"seed": 2**70},
)
WITH_HEAD = ({"method": "eagle3", "control": False}, {"method": "eagle3", "tree": {"num_children": 3, "max_nodes": 12}})
NUM_SCHEMAS = 200  # few enough that the cache of compiled grammars is full once the server is warm
OPTIONAL = 0.15  # how often each parameter is there


@dataclass(frozen=True)
class Ask:
    """One request. `leaves_after`: seconds until the client disconnects; `is_abrupt`: without a word."""

    path: str
    body: Mapping[str, Any]
    schema: Any = None  # that the text satisfies where it ends with "stop"
    is_mistake: bool = False
    leaves_after: float | None = None
    is_abrupt: bool = False


class Asker:
    """Draws requests. `has_head`: of a model that comes with an EAGLE-3 head."""

    def __init__(self, seed: int, max_tokens: int = 48, tools: bool = True, has_head: bool = False) -> None:
        self._rng = random.Random(seed)
        self._max_tokens = max_tokens
        self._has_tools = tools
        self._has_head = has_head

    def draw(self) -> Ask:
        """The next one."""
        rng = self._rng
        path = rng.choice((CHAT, CHAT, COMPLETIONS, RESPONSES))
        body: dict[str, Any] = {"stream": rng.random() < 0.85, **self._prompt(path)}
        body["max_output_tokens" if path == RESPONSES else "max_tokens"] = rng.randint(1, self._max_tokens)
        schema = self._constrain(path, body) if rng.random() < 0.4 else None
        is_free = not {"structured_outputs", "response_format", "text", "tools"} & set(body)
        for name, draw in {**PARAMETERS, **(FREE_PARAMETERS if is_free else {})}.items():
            if rng.random() < OPTIONAL:
                body[name] = draw(rng)
        if self._has_head and "speculative" in body and rng.random() < 0.25:
            body["speculative"] = rng.choice(WITH_HEAD)
        self._fit(path, body)
        if rng.random() < 0.08:
            return Ask(path, {**body, **rng.choice(MISTAKES)}, is_mistake=True)
        leaves = rng.expovariate(1.0) if rng.random() < 0.25 else None
        return Ask(path, body, schema, leaves_after=leaves, is_abrupt=rng.random() < 0.5)

    def _prompt(self, path: str) -> dict[str, Any]:
        rng = self._rng
        text = rng.choice(TEXTS) * rng.choice([1, 1, 1, 4])
        if rng.random() < 0.3:
            text = f"{rng.randrange(1000)}. {text}"  # nothing of it is cached
        if path == COMPLETIONS:
            return {"prompt": text, "return_token_ids": True}
        if path == RESPONSES:
            return {"input": text}
        return {"messages": [{"role": "user", "content": text}], "return_token_ids": True}

    def _constrain(self, path: str, body: dict[str, Any]) -> Any:
        """Put a constraint into a body; its JSON schema if it is one."""
        rng = self._rng
        kind = rng.choice(("json", "json", "regex", "choice", "grammar", "json_object", "tools"))
        if kind == "json":
            schema = object_schema(random.Random(self._rng.randrange(NUM_SCHEMAS)), 2)
            body["max_output_tokens" if path == RESPONSES else "max_tokens"] = 2 * self._max_tokens  # most will end
            form = {"name": "answer", "schema": schema}
            if path == RESPONSES:
                body["text"] = {"format": {"type": "json_schema", **form}}
            else:
                body["response_format"] = {"type": "json_schema", "json_schema": form}
            return schema
        if kind == "tools" and self._has_tools and path != COMPLETIONS:
            self._add_tools(path, body)
            return None
        constraint = {
            "regex": {"regex": rng.choice(["[a-c]{2,9}", "(yes|no)( sir){0,2}", "[0-9]{1,3}\\.[0-9]{2}"])},
            "choice": {"choice": ["yes", "no", "perhaps"][: rng.randint(1, 3)]},
            "grammar": {"grammar": 'root ::= "(" root ")" | "x"'},
        }.get(kind, {"json_object": True})
        body["structured_outputs"] = constraint
        return None

    def _add_tools(self, path: str, body: dict[str, Any]) -> None:
        parameters = object_schema(random.Random(self._rng.randrange(NUM_SCHEMAS)), 2)
        function = {"name": "look_up", "description": "Looks something up.", "parameters": parameters}
        body["tools"] = [{"type": "function", **({"function": function} if path == CHAT else function)}]
        body["tool_choice"] = self._rng.choice(["required", "auto"])
        body["max_output_tokens" if path == RESPONSES else "max_tokens"] = self._rng.randint(64, 96)  # a call fits in

    def _fit(self, path: str, body: dict[str, Any]) -> None:
        """Take out what an endpoint does not have, and what does not go together."""
        rng = self._rng
        if path == RESPONSES:
            for name in ("n", "prompt_logprobs"):
                body.pop(name, None)
        elif rng.random() < OPTIONAL and "tools" not in body:
            body |= {"logprobs": 2} if path == COMPLETIONS else {"logprobs": True, "top_logprobs": 2}
        if "min_tokens" in body:
            body["min_tokens"] = min(body["min_tokens"], body.get("max_tokens", body.get("max_output_tokens", 1)))
        if rng.random() < 0.3:
            body["seed"] = rng.randrange(2**53)


def object_schema(rng: random.Random, depth: int) -> dict[str, Any]:
    """An object of a few properties."""
    names = rng.sample(["name", "age", "tags", "kind", "open", "place", f"x{rng.randrange(50)}"], rng.randint(1, 3))
    made = {name: value_schema(rng, depth - 1) for name in names}
    return {"type": "object", "properties": made, "required": names, "additionalProperties": False}


def value_schema(rng: random.Random, depth: int) -> dict[str, Any]:
    """Of a property, with objects and lists inside each other to this depth."""
    kind = rng.choice(("integer", "boolean", "string", "enum", "array", "object"))
    if kind == "object" and depth > 0:
        return object_schema(rng, depth)
    if kind == "array" and depth > 0:
        return {"type": "array", "items": value_schema(rng, depth - 1), "maxItems": rng.randint(1, 3)}
    if kind == "enum":
        return {"enum": ["red", "green", rng.randrange(9)]}
    if kind == "integer":
        return {"type": "integer", "minimum": 0, "maximum": rng.choice([9, 120, 9999])}
    return {"type": "boolean"} if kind == "boolean" else {"type": "string", "maxLength": rng.randint(3, 20)}
