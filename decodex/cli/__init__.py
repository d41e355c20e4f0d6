"""The `decodex` command: one module for each sub-command, flags made from the definitions.

Rooms above this one, and other packages, add sub-commands through the entry point group `decodex.commands`.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence

from decodex.cli.flags import one_line, parse_command
from decodex.errors import DecodexError, RequestError
from decodex.spec.train.errors import TrainingError
from decodex.version import __version__

__all__ = ["main"]

COMMANDS = {
    "generate": "continue one or more prompts",
    "chat": "talk to the model in the terminal",
    "bench": "measure tokens/s over batch sizes and lengths",
    "distill": "let the model answer prompts: training data for its draft heads",
    "train-head": "train a draft head on the model's own answers",
    "convert-head": "write an EAGLE-3 head in another public layout",
    "demo": "show on the demo model what the engine does, step by step",
    "kernels": "compile the GPU kernels ahead of time and show what they use",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command; the exit status is 0, 1 (failed), 2 (a mistake in the request) or 130 (interrupted)."""
    if list(sys.argv[1:] if argv is None else argv) == ["--version"]:
        print(f"decodex {__version__}")
        return 0
    added = {entry.name: entry for entry in importlib.metadata.entry_points(group="decodex.commands")}
    name, rest = parse_command(sys.argv[1:] if argv is None else argv, {**COMMANDS, **summaries(added)}, prog="decodex")
    try:
        run: Callable[[Sequence[str]], int] = command(name) if name in COMMANDS else added[name].load()
        return run(rest)
    except (DecodexError, TrainingError) as error:
        print(f"decodex {name}: error: {one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, (RequestError, TrainingError)) else 1
    except OSError as error:
        print(f"decodex {name}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def summaries(added: Mapping[str, importlib.metadata.EntryPoint]) -> dict[str, str]:
    """What each added sub-command is for: the first line of its module's docstring, read without running the module."""
    found = {}
    for name, entry in added.items():
        spec = importlib.util.find_spec(entry.module)
        source = "" if spec is None or spec.origin is None else pathlib.Path(spec.origin).read_text("utf-8")
        text = (ast.get_docstring(ast.parse(source)) or entry.value).partition("\n")[0]
        found[name] = (text.partition(": ")[2] or text).rstrip(".")
    return found


def command(name: str) -> Callable[[Sequence[str]], int]:
    """The function of a sub-command; imported here so that a typing mistake is answered without loading torch."""
    if name == "generate":
        from decodex.cli import generate

        return generate.run
    if name == "chat":
        from decodex.cli import chat

        return chat.run
    if name == "bench":
        from decodex.cli import bench

        return bench.run
    if name == "distill":
        from decodex.cli import distill

        return distill.run
    if name == "train-head":
        from decodex.cli import train_head

        return train_head.run
    if name == "convert-head":
        from decodex.cli import convert_head

        return convert_head.run
    if name == "kernels":
        from decodex.cli import kernels

        return kernels.run
    from decodex.cli import demo

    return demo.run
