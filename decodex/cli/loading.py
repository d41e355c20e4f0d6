"""The engine that a command line asks for. Mistakes in it are answered before anything heavy is imported."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from decodex.cli.flags import Parser, add_flags, given
from decodex.config import EngineConfig

if TYPE_CHECKING:
    from decodex.llm import LLM

__all__ = ["add_engine_flags", "load_llm"]


def add_engine_flags(parser: Parser, *, beside_sampling: bool = False) -> None:
    """Add the flags of EngineConfig; its seed is --engine-seed beside those of SamplingParams."""
    add_flags(parser, EngineConfig, rename={"seed": "engine-seed"} if beside_sampling else None)


def load_llm(arguments: argparse.Namespace) -> LLM:
    """Load the model with the engine flags of `arguments`; raises RequestError or ModelError."""
    options = given(arguments, EngineConfig)
    EngineConfig(**options)
    from decodex.llm import LLM

    return LLM(**options)
