"""JSON schemas of parameters, from their types and checks, for the OpenAPI document."""

from __future__ import annotations

import math
import typing
from typing import Any

from pydantic import TypeAdapter

from decodex.checks import Bias, Int, Number, OneOf, Texts, TokenIds
from decodex.definition import options_of
from decodex.structured_outputs import StructuredOutputsParams

__all__ = ["bounded", "schema_of"]


def schema_of(hint: Any) -> dict[str, Any]:
    """The JSON schema of a parameter's type."""
    if StructuredOutputsParams in typing.get_args(hint):
        fields = typing.get_type_hints(StructuredOutputsParams)
        properties = {
            option.name: {**schema_of(fields[option.name]), "description": option.metadata["help"]}
            for option in options_of(StructuredOutputsParams)
        }
        return {
            "anyOf": [{"type": "object", "properties": properties, "additionalProperties": False}, {"type": "null"}]
        }
    return dict(TypeAdapter(hint).json_schema())


def bounded(schema: dict[str, Any], check: Any) -> dict[str, Any]:
    """The schema with what the parameter's check says of ranges and lengths."""
    branches = schema.get("anyOf", [schema])
    for branch in branches:
        if isinstance(check, Int | Number) and branch.get("type") in ("integer", "number"):
            branch["minimum"] = min(check.low, *check.off_values) if check.off_values else check.low
            if isinstance(check, Number) and check.open_low and not check.off_values:
                branch["exclusiveMinimum"] = branch.pop("minimum")
            if check.high is not None and check.high != math.inf:
                branch["maximum"] = check.high
        elif isinstance(check, OneOf) and branch.get("type") == "string":
            branch["enum"] = list(check.words)
        elif isinstance(check, Texts) and branch.get("type") == "string":
            branch |= {"minLength": 1, "maxLength": check.longest}
        elif isinstance(check, Texts) and branch.get("type") == "array":
            branch["maxItems"] = check.most
            branch["items"] = {"type": "string", "minLength": 1, "maxLength": check.longest}
        elif isinstance(check, TokenIds) and branch.get("type") == "array":
            branch["items"] = {"type": "integer", "minimum": 0}
            branch |= {"maxItems": check.most} if check.most is not None else {}
            branch |= {} if check.may_be_empty else {"minItems": 1}
        elif isinstance(check, Bias) and branch.get("type") == "object":
            branch["propertyNames"] = {"pattern": "^[0-9]+$"}
            branch["additionalProperties"] = {"type": "number", "minimum": -100, "maximum": 100}
    return schema
