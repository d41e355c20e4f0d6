"""The engine that a command line asks for. Mistakes in it are answered before anything heavy is imported."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from decodex.cli.flags import Parser, add_flags, given
from decodex.config import EngineConfig
from decodex.errors import RequestError
from decodex.grammar.constraint import KINDS
from decodex.params import SamplingParams
from decodex.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from decodex.llm import LLM

__all__ = ["add_engine_flags", "add_sampling_flags", "load_llm", "sampling_params"]

CONSTRAINT_FLAGS = {"json": "json-schema", "backend": "grammar-backend", "whitespace": "json-whitespace"}


def add_sampling_flags(parser: Parser, defaults: Mapping[str, Any]) -> None:
    """Add the flags of SamplingParams and of its structured output."""
    add_flags(parser, SamplingParams, defaults=defaults)
    add_flags(parser, StructuredOutputsParams, rename=CONSTRAINT_FLAGS)


def sampling_params(arguments: argparse.Namespace, defaults: Mapping[str, Any]) -> SamplingParams:
    """The parameters that the command line asks for; raises RequestError."""
    values = {**defaults, **given(arguments, SamplingParams)}
    constraint = given(arguments, StructuredOutputsParams)
    if constraint:
        _check_constraint(constraint)
        values["structured_outputs"] = StructuredOutputsParams(**constraint)
    return SamplingParams(**values)


def _check_constraint(constraint: Mapping[str, Any]) -> None:
    """Refuse the name of a file that is not there, and flags that say how without one that says what."""
    for kind, signs in (("json", "{[:"), ("grammar", ":"), ("structural_tag", "{")):
        value = constraint.get(kind)
        if isinstance(value, str) and value not in ("true", "false") and not set(value) & {*signs, "\n"}:
            raise RequestError(
                f"--{CONSTRAINT_FLAGS.get(kind, kind).replace('_', '-')}",
                value,
                "a file, or the text itself",
                "no such file",
            )
    if not constraint.keys() & set(KINDS):
        name = next(iter(constraint))
        flag = f"--{CONSTRAINT_FLAGS.get(name, name).replace('_', '-')}"
        raise RequestError(
            flag, constraint[name], "a constraint beside it", "add --json-schema, --regex, --choice, ..."
        )


def add_engine_flags(parser: Parser, *, beside_sampling: bool = False) -> None:
    """Add the flags of EngineConfig; its seed is --engine-seed beside those of SamplingParams."""
    add_flags(parser, EngineConfig, rename={"seed": "engine-seed"} if beside_sampling else None)


def load_llm(arguments: argparse.Namespace) -> LLM:
    """Load the model with the engine flags of `arguments`; raises RequestError or ModelError."""
    options = given(arguments, EngineConfig)
    EngineConfig(**options)
    from decodex.llm import LLM

    return LLM(**options)
