"""Command line flags made from the definitions (`SamplingParams`, `EngineConfig`): one flag for each field.

A flag that is not given is not passed on, so defaults live in the definition alone. Lists are written with
commas or as JSON (`--stop '[","]'`), mappings as JSON, `none` is None where the field allows it.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from decodex.definition import FILE_OR_TEXT, options_of
from decodex.errors import nearest_name

__all__ = ["Parser", "add_flags", "given", "one_line", "parse_command"]

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line on stderr and exit status 2."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter, **kwargs)
        # argparse takes -1e-3 and -inf for flags
        self._negative_number_matcher = re.compile(r"^-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$|^-inf$")

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {one_line(message)}", file=sys.stderr)
        sys.exit(2)

    def parse_exactly(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse `argv`; an unknown flag is an error that suggests the nearest one."""
        arguments, unknown = self.parse_known_args(argv)
        if unknown:
            name = unknown[0].split("=", 1)[0]
            hint = nearest_name(name, self._option_string_actions) if name.startswith("-") else ""
            self.error(f"unknown argument {name}" + (f"; {hint}" if hint else f"; see {self.prog} --help"))
        return arguments


def one_line(message: object) -> str:
    """The text of a message with its line breaks folded."""
    return " ".join(str(message).split())


def parse_command(argv: Sequence[str], commands: Mapping[str, str], prog: str) -> tuple[str, list[str]]:
    """Split `argv` into a command name and the rest; prints the overview for none or --help (exits)."""
    overview = Parser(prog=prog, usage=f"{prog} COMMAND [options]", add_help=False)
    if not argv or argv[0] in ("-h", "--help", "help"):
        width = max(map(len, commands))
        print(f"usage: {overview.usage}\n")
        print("\n".join(f"  {name:<{width}}  {help}" for name, help in commands.items()))
        print(f"\n{prog} COMMAND --help lists the options of a command.")
        sys.exit(0 if argv else 2)
    if argv[0] not in commands:
        hint = nearest_name(argv[0], commands)
        overview.error(f"unknown command {argv[0]!r}; " + (hint or f"one of {', '.join(commands)}"))
    return argv[0], list(argv[1:])


def add_flags(
    parser: Parser,
    definition: type,
    defaults: Mapping[str, Any] | None = None,
    rename: Mapping[str, str] | None = None,
) -> None:
    """Add a flag for each field of `definition` to `parser`, in a group of its own.

    `defaults`: the command's own defaults, where they differ from the definition's; `rename`: field -> flag
    name, where two definitions share a field name.
    """
    group = parser.add_argument_group(
        f"{definition.__name__} fields", "LIST: items between commas, or a JSON list. JSON: a JSON object."
    )
    hints = typing.get_type_hints(definition)
    for field in options_of(definition):
        if not field.metadata.get("cli", True):
            continue
        name = (rename or {}).get(field.name, field.name)
        default = (defaults or {}).get(field.name, field.default)
        help = field.metadata["help"].replace("%", "%%") + f" (default: {show(default)})"
        options: dict[str, Any] = {
            "dest": f"{definition.__name__}.{field.name}",
            "default": argparse.SUPPRESS,
            "help": help,
        }
        if hints[field.name] is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif field.metadata.get("metavar") == FILE_OR_TEXT:
            options["type"] = text_of
            options["metavar"] = FILE_OR_TEXT
        else:
            options["type"] = converter(hints[field.name], field.metadata.get("choices"))
            options["metavar"] = field.metadata.get("metavar") or metavar(hints[field.name], field.metadata)
        group.add_argument(f"--{name.replace('_', '-')}", **options)


def given(arguments: argparse.Namespace, definition: type) -> dict[str, Any]:
    """The fields of `definition` that the command line set."""
    prefix = f"{definition.__name__}."
    return {name[len(prefix) :]: value for name, value in vars(arguments).items() if name.startswith(prefix)}


def show(value: Any) -> str:
    """A default as one would type it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "none"
    return str(value)


def members(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def metavar(hint: Any, metadata: Mapping[str, Any]) -> str:
    """What the help shows for the value: the choices, or the kind of value."""
    if metadata.get("choices"):
        return "{" + ",".join(metadata["choices"]) + "}"
    plain = [m for m in members(hint) if m is not types.NoneType]
    return {int: "N", float: "X", str: "TEXT"}.get(plain[0], "LIST")


def converter(hint: Any, choices: tuple[str, ...] | None) -> Callable[[str], Any]:
    """A function from the text of a flag to a value of type `hint`; raises argparse.ArgumentTypeError."""
    kinds = members(hint)

    def convert(text: str) -> Any:
        if types.NoneType in kinds and text.lower() == "none":
            return None
        if choices is not None and text not in choices:
            raise argparse.ArgumentTypeError(f"got {text!r}, expected one of {', '.join(choices)}")
        sequence = [k for k in kinds if typing.get_origin(k) in (tuple, list)]
        if sequence:
            return as_list(text, typing.get_args(sequence[0])[0])
        if any(typing.get_origin(k) is dict or k is dict for k in kinds):
            return as_json(text, dict, "a JSON object")
        return as_scalar(text, kinds)

    return convert


def text_of(value: str) -> str:
    """The text of the file that `value` names, or else `value` itself."""
    try:
        return pathlib.Path(value).read_text("utf-8") if pathlib.Path(value).is_file() else value
    except (OSError, ValueError) as error:  # a long text is no possible name
        if "\n" in value or len(value) > 200:
            return value
        raise argparse.ArgumentTypeError(f"got {value!r}, expected a text or a readable file: {error}") from None


def as_scalar(text: str, kinds: tuple[Any, ...]) -> Any:
    """The text as the first of int, float, str that `kinds` has and that fits."""
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    if str in kinds:
        return text
    expected = "a number" if float in kinds else "an integer"
    raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected}")


def as_list(text: str, kind: type) -> list[Any]:
    """A JSON list, or items between commas."""
    if text.lstrip().startswith("["):
        return list(as_json(text, list, "a JSON list"))
    if not text:
        raise argparse.ArgumentTypeError("got nothing, expected items between commas, or [] for none")
    return [as_scalar(item.strip() if kind is not str else item, (kind,)) for item in text.split(",") if item]


def as_json(text: str, kind: type[T], expected: str) -> T:
    """The JSON value of `text`, which must be a `kind`."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected}: {error}") from None
    if not isinstance(value, kind):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected}")
    return value
