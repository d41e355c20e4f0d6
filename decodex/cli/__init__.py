"""The `decodex` command: one module for each sub-command, flags made from the definitions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

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
    name, rest = parse_command(sys.argv[1:] if argv is None else argv, COMMANDS, prog="decodex")
    try:
        return command(name)(rest)
    except (DecodexError, TrainingError) as error:
        print(f"decodex {name}: error: {one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, (RequestError, TrainingError)) else 1
    except OSError as error:
        print(f"decodex {name}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


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
