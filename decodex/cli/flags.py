"""Command line flags made from the definitions (`SamplingParams`, `EngineConfig`): one flag for each field.

A flag that is not given is not passed on, so defaults live in the definition alone. Lists are written by repeating
the flag or as JSON (`--stop '["a", "b"]'`), token ids also with commas, mappings as JSON; `none` is None where the
field allows it.
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

from decodex.definition import FILE_OR_TEXT, Refusal, options_of
from decodex.errors import nearest_name

__all__ = ["Parser", "add_flags", "given", "one_line", "parse_command"]

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line on stderr and exit status 2."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter, **kwargs)
        self.refused: dict[str, Refusal] = {}  # fields that a definition refuses by name
        # argparse takes -1e-3 and -inf for flags
        self._negative_number_matcher = re.compile(r"^-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$|^-inf$")

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {one_line(message)}", file=sys.stderr)
        sys.exit(2)

    def parse_exactly(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse `argv`; an unknown flag is an error that suggests the nearest one, or says why there is none."""
        arguments, unknown = self.parse_known_args(argv)
        if unknown:
            name = unknown[0].split("=", 1)[0]
            refusal = self.refused.get(name.removeprefix("--").replace("-", "_"))
            if refusal is not None:
                self.error(f"{name}: {refusal.reason}")
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
    parser.refused.update(getattr(definition, "refused", {}))
    group = parser.add_argument_group(
        f"{definition.__name__} fields",
        "STR...: repeat the flag, or give a JSON list; ID...: the same, or ids between commas. JSON: a JSON object.",
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
            if sequence_of(hints[field.name]) is not None:
                options["action"] = Extend
                options["metavar"] += "..."
        group.add_argument(f"--{name.replace('_', '-')}", **options)


class Extend(argparse.Action):
    """A list flag that may be repeated; none empties the list."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, None if values is None else [*(before or ()), *values])


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


def sequence_of(hint: Any) -> type | None:
    """The type of a list's items, None for other types."""
    found = [k for k in members(hint) if typing.get_origin(k) in (tuple, list)]
    return typing.get_args(found[0])[0] if found else None


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
        if (types.NoneType in kinds or hint is Any) and text.lower() == "none":
            return None
        if hint is Any:  # the field reads its own text
            return text
        if choices is not None and text not in choices:
            raise argparse.ArgumentTypeError(f"got {text!r}, expected one of {', '.join(choices)}")
        item = sequence_of(hint)
        if item is not None:
            return as_list(text, item)
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
    """A JSON list, one string, or numbers between commas."""
    if text.lstrip().startswith("["):
        return list(as_json(text, list, "a JSON list"))
    if not text:
        raise argparse.ArgumentTypeError("got nothing, expected a value, or [] for none")
    return [text] if kind is str else [as_scalar(item.strip(), (kind,)) for item in text.split(",")]


def as_json(text: str, kind: type[T], expected: str) -> T:
    """The JSON value of `text`, which must be a `kind`."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected}: {error}") from None
    if not isinstance(value, kind):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected}")
    return value
