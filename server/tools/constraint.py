"""The structural tag of an output with tool calls and reasoning: what is called is a function that there is, with
arguments that follow its schema."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema

from decodex.errors import RequestError
from decodex.grammars import refusal_of_schema
from decodex.server.reasoning import Reasoning
from decodex.server.tools.request import Tool, ToolRequest
from decodex.server.tools.syntax import CallSyntax
from decodex.structured_outputs import FIELD, StructuredOutputsParams

__all__ = ["close_schema", "output_tag"]

Item = dict[str, Any]

# beside `properties`: what may ask for, or allow, others; anywhere: what may turn a narrower part into a wider whole
_COMBINING = ("anyOf", "$ref", "patternProperties", "minProperties", "dependentRequired")
_FAR_REACHING = ("allOf", "oneOf", "not", "if", "contains", "unevaluatedProperties", "$dynamicRef", "dependentSchemas")


def output_tag(
    request: ToolRequest | None,
    syntax: CallSyntax,
    reasoning: Reasoning | None,
    constraint: StructuredOutputsParams | None,
) -> Item:
    """What the whole output is. `constraint`: what it is where it is no call; None: any text. RequestError names the
    field."""
    if constraint is not None and request is not None and request.choice == "required":
        hint = "every output is a call, and none a text that it could hold for"
        raise RequestError(FIELD, constraint.kind, "to be absent where tool_choice requires a call", hint)
    content = None if constraint is None else _content(constraint)
    is_mixed = request is not None and request.choice == "auto" and not syntax.trigger
    if constraint is not None and is_mixed and constraint.whitespace != "spaced":
        hint = f"so are the calls of the format {syntax.name}"
        raise RequestError(f"{FIELD}.whitespace", constraint.whitespace, "spaced", hint)
    if reasoning is None:
        answer = _answer(request, syntax, content, ())
    else:
        answer = _after_reasoning(request, syntax, reasoning, content)
        if not reasoning.is_open:
            answer = _either(answer, _answer(request, syntax, content, (reasoning.markers.start,)))
    return {"type": "structural_tag", "format": answer}


def _answer(request: ToolRequest | None, syntax: CallSyntax, content: Item | None, avoided: tuple[str, ...]) -> Item:
    """What isn't reasoning. `avoided`: what free text doesn't begin with, for it would be something else."""
    if request is None or request.choice == "none":
        return content or _text_unlike(avoided)
    if request.choice == "required":
        return calls_item(request, syntax)
    if content is not None:
        return _calls_or(request, syntax, content)
    if syntax.trigger:
        return _text_with_calls(request, syntax, avoided)
    starts = [opening or syntax.before_name for opening in syntax.openings]
    return _either(calls_item(request, syntax), _text_unlike((*avoided, *starts)))


def _after_reasoning(
    request: ToolRequest | None, syntax: CallSyntax, reasoning: Reasoning, content: Item | None
) -> Item:
    """A block of reasoning, which the prompt has begun or the output begins, and the answer."""
    start = "" if reasoning.is_open else reasoning.markers.start
    block = {"type": "tag", "begin": start, "content": {"type": "any_text"}, "end": reasoning.markers.end}
    is_free = content is None and (request is None or request.choice != "required")
    if is_free and (request is None or syntax.trigger):
        return _sequence(block, _answer(request, syntax, content, ()))
    return _sequence(block, {"type": "regex", "pattern": "\\n{0,2}"}, _answer(request, syntax, content, ("\n",)))


def _content(constraint: StructuredOutputsParams) -> Item:
    """A whole-output constraint as a part of a structural tag."""
    if constraint.backend not in ("auto", "llguidance"):
        hint = "tools and reasoning run on llguidance alone"
        raise RequestError(f"{FIELD}.backend", constraint.backend, "auto or llguidance", hint)
    if constraint.kind == "json":
        reason = refusal_of_schema(constraint.constraint.text)
        if reason is not None:
            raise RequestError(f"{FIELD}.json", constraint.json, "a constraint that can be honoured", reason)
        return {"type": "json_schema", "json_schema": constraint.constraint.text}
    if constraint.kind == "json_object":
        return {"type": "json_schema", "json_schema": {"type": "object"}}
    if constraint.kind == "regex":
        return {"type": "regex", "pattern": constraint.regex}
    if constraint.kind == "choice":
        return {"type": "regex", "pattern": "|".join(re.escape(text) for text in constraint.choice or ())}
    if constraint.kind == "grammar":
        return {"type": "grammar", "grammar": constraint.grammar}
    hint = "a structural tag describes the whole output itself"
    raise RequestError(f"{FIELD}.structural_tag", constraint.structural_tag, "to be absent here", hint)


def calls_item(request: ToolRequest, syntax: CallSyntax) -> Item:
    """One call, or several where they may be parallel."""
    tags = [_tag(tool, syntax) for tool in request.callable]
    calls: Item = {
        "type": "tags_with_separator",
        "separator": syntax.separator,
        "tags": tags,
        "at_least_one": True,
        "stop_after_first": not _is_parallel(request, syntax),
    }
    if syntax.closing:
        calls = _sequence(calls, _const(syntax.closing))
    return _either(*(_sequence(_const(opening), calls) if opening else calls for opening in syntax.openings))


def _is_parallel(request: ToolRequest, syntax: CallSyntax) -> bool:
    return not syntax.is_single if request.parallel is None else request.parallel


def _tag(tool: Tool, syntax: CallSyntax) -> Item:
    content = {"type": "json_schema", "json_schema": _schema(tool)}
    return {"type": "tag", "begin": syntax.header(tool.name), "content": content, "end": syntax.after_arguments}


def _calls_or(request: ToolRequest, syntax: CallSyntax, content: Item) -> Item:
    """Calls or a constrained content. Where both are JSON one schema says both: a lexer would have to decide at the
    first brace."""
    if syntax.trigger or content["type"] != "json_schema":
        return _either(calls_item(request, syntax), content)
    is_parallel = _is_parallel(request, syntax)
    if is_parallel and not syntax.closing:
        hint = f"beside JSON as the answer, the format {syntax.name} has one call"
        raise RequestError("parallel_tool_calls", True, "false", hint)
    answer = content["json_schema"]
    schemas = [_schema(tool) for tool in request.callable]
    schemas.append(json.loads(answer) if isinstance(answer, str) else answer)
    references = [{"$ref": f"#/$defs/s{index}"} for index in range(len(schemas))]
    arguments = "parameters" if "parameters" in syntax.before_arguments else "arguments"
    calls = [
        _object({"name": {"const": tool.name}, arguments: inner}) for tool, inner in zip(request.callable, references)
    ]
    wanted = {"anyOf": calls}
    if syntax.closing:
        limit = {} if is_parallel else {"maxItems": 1}
        wanted = _object({"tool_calls": {"type": "array", "items": wanted, "minItems": 1, **limit}})
    named = {f"s{index}": _moved(schema, f"#/$defs/s{index}") for index, schema in enumerate(schemas)}
    return {"type": "json_schema", "json_schema": {"anyOf": [wanted, references[-1]], "$defs": named}}


def _object(properties: Mapping[str, Any]) -> Item:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """A schema as it stands inside another one: its references follow it."""
    if isinstance(schema, list):
        return [_moved(inner, place) for inner in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {key: _moved(inner, place) for key, inner in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = place + reference[1:]
    return moved


def _text_with_calls(request: ToolRequest, syntax: CallSyntax, avoided: tuple[str, ...]) -> Item:
    """Free text in which the format's trigger begins calls."""
    opening = syntax.openings[0]
    if syntax.closing:
        inner = calls_item(request, dataclasses.replace(syntax, openings=("",), closing=""))
        tags = [{"type": "tag", "begin": opening, "content": inner, "end": syntax.closing}]
    else:
        tags = [_tag(tool, syntax) for tool in request.callable]
    is_one = bool(syntax.closing) or not _is_parallel(request, syntax)
    text = {"type": "triggered_tags", "triggers": [syntax.trigger], "tags": tags, "stop_after_first": is_one}
    if not avoided:
        return text
    head = {"type": "tag", "begin": "", "content": _text_unlike(avoided), "end": syntax.trigger}
    bodies = [{**tag, "begin": str(tag["begin"]).removeprefix(syntax.trigger)} for tag in tags]
    with_calls = _sequence(head, _either(*bodies), *(() if is_one else (text,)))
    return _either(with_calls, _text_unlike(avoided))


def _text_unlike(starts: Sequence[str]) -> Item:
    """Any text that begins with none of these."""
    if not starts:
        return {"type": "any_text"}
    ways = []
    for prefix in sorted({start[:at] for start in starts for at in range(len(start))}):
        following = sorted({start[len(prefix)] for start in starts if start.startswith(prefix) and start != prefix})
        signs = "".join(_in_class(sign) for sign in following)
        ways.append(f"{re.escape(prefix)}(?:[^{signs}](?:.|\\n)*)?")
    return {"type": "regex", "pattern": "|".join(ways)}


def _in_class(sign: str) -> str:
    return f"\\{sign}" if sign in "\\]^-[" else "\\n" if sign == "\n" else sign


def _either(*items: Item) -> Item:
    return items[0] if len(items) == 1 else {"type": "or", "elements": list(items)}


def _sequence(*items: Item) -> Item:
    return {"type": "sequence", "elements": list(items)}


def _const(text: str) -> Item:
    return {"type": "const_string", "value": text}


def _schema(tool: Tool) -> Mapping[str, Any]:
    """The schema that is enforced: of a tool that isn't strict, as far as it can be."""
    field = f"{tool.field}.parameters"
    closed = close_schema(tool.parameters)
    if refusal_of_schema(json.dumps(closed)) is None:
        return closed
    reason = refusal_of_schema(json.dumps(tool.parameters))
    if reason is None:
        return tool.parameters
    fault = _fault(tool.parameters)
    if fault is not None:
        raise RequestError(field, tool.parameters, "a JSON schema", fault)
    if tool.strict:
        raise RequestError(field, tool.parameters, "a schema that can be honoured", reason)
    return {"type": "object"}


def _fault(schema: Mapping[str, Any]) -> str | None:
    """Why something is no JSON schema at all."""
    try:
        jsonschema.Draft202012Validator.check_schema(dict(schema))
    except (jsonschema.SchemaError, RecursionError) as error:
        return f"{getattr(error, 'json_path', '$')}: {str(error).splitlines()[0]}"
    return None


def close_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same schema without properties that it doesn't name, where nothing in it speaks of others: what satisfies it
    satisfies `schema`."""
    return schema if _mentions(schema, _FAR_REACHING) else _closed(schema)


def _closed(node: Any) -> Any:
    if not isinstance(node, Mapping):
        return node
    closed = dict(node)
    for key in ("properties", "$defs", "definitions"):
        if isinstance(node.get(key), Mapping):
            closed[key] = {name: _closed(inner) for name, inner in node[key].items()}
    for key in ("items", "additionalProperties"):
        if key in node:
            closed[key] = _closed(node[key])
    if not isinstance(node.get("properties"), Mapping) and isinstance(node.get("anyOf"), list):
        closed["anyOf"] = [_closed(inner) for inner in node["anyOf"]]
    properties, required = node.get("properties"), node.get("required", [])
    is_plain = isinstance(properties, Mapping) and isinstance(required, Sequence) and set(required) <= set(properties)
    if is_plain and "additionalProperties" not in node and not any(key in node for key in _COMBINING):
        closed["additionalProperties"] = False
    return closed


def _mentions(value: Any, keys: Sequence[str]) -> bool:
    """Whether one of these keywords is anywhere (a property of that name counts, too)."""
    if isinstance(value, Mapping):
        return any(key in value for key in keys) or any(_mentions(inner, keys) for inner in value.values())
    return isinstance(value, list) and any(_mentions(inner, keys) for inner in value)
