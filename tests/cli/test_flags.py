"""Every field of the definitions is a flag, and a mistake on the command line is one line that names it."""

from __future__ import annotations

import pathlib

import pytest

from decodex.cli import main
from decodex.cli.flags import Parser, add_flags, given
from decodex.cli.generate import build_parser
from decodex.cli.loading import CONSTRAINT_FLAGS, sampling_params
from decodex.config import EngineConfig
from decodex.definition import definition, option, options_of
from decodex.errors import RequestError
from decodex.params import SamplingParams
from decodex.structured_outputs import StructuredOutputsParams


@definition
class Toy:
    """One field of each kind."""

    n: int = option(default=1, help="a count, 100% of it")
    x: float | None = option(default=0.5, help="a number")
    name: str = option(default="a", help="a name", choices=("a", "b"))
    maybe: str | None = option(default=None, help="a name or nothing", choices=("int8",))
    on: bool = option(default=True, help="a switch")
    ids: tuple[int, ...] | list[int] | None = option(default=None, help="numbers")
    words: tuple[str, ...] | list[str] | str | None = option(default=None, help="texts")
    bias: dict[str, float] | None = option(default=None, help="a mapping")
    hidden: int = option(default=3, help="not a flag", cli=False)


def toy_parser() -> Parser:
    parser = Parser(prog="toy")
    add_flags(parser, Toy)
    return parser


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("--n 3", {"n": 3}),
        ("--x -1e-3", {"x": -1e-3}),
        ("--x none", {"x": None}),
        ("--name b", {"name": "b"}),
        ("--maybe none", {"maybe": None}),
        ("--no-on", {"on": False}),
        ("--ids 1,2", {"ids": [1, 2]}),
        ("--ids [1,2]", {"ids": [1, 2]}),
        ("--ids none", {"ids": None}),
        ("--ids 1,2 --ids 3", {"ids": [1, 2, 3]}),
        ("--words a,b", {"words": ["a,b"]}),
        ("--words , --words b", {"words": [",", "b"]}),
        ('--words a --words ["b"]', {"words": ["a", "b"]}),
        ('--words [",","b"]', {"words": [",", "b"]}),
        ('--bias {"7":-1.5}', {"bias": {"7": -1.5}}),
    ],
)
def test_values_become_the_field_type(text: str, expected: dict[str, object]) -> None:
    assert given(toy_parser().parse_exactly(text.split()), Toy) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("--nn 3", "unknown argument --nn; did you mean '--n'?"),
        ("--idz=3", "unknown argument --idz; did you mean '--ids'?"),
        ("--hidden 3", "unknown argument --hidden"),
        ("--n 1.5", "argument --n: got '1.5', expected an integer"),
        ("--n none", "argument --n: got 'none', expected an integer"),
        ("--x abc", "argument --x: got 'abc', expected a number"),
        ("--name c", "argument --name: got 'c', expected one of a, b"),
        ("--ids 1,b", "argument --ids: got 'b', expected an integer"),
        ("--ids [1", "argument --ids: got '[1', expected a JSON list"),
        ("--bias [1]", "argument --bias: got '[1]', expected a JSON object"),
        ("stray", "unknown argument stray"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(text: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        toy_parser().parse_exactly(text.split())
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith(f"toy: error: {complaint}")
    assert message.count("\n") == 1


def test_every_field_is_a_flag_of_generate() -> None:
    flags = build_parser()._option_string_actions
    renamed = {(EngineConfig, "seed"): "engine-seed"}
    renamed |= {(StructuredOutputsParams, field): name for field, name in CONSTRAINT_FLAGS.items()}
    for made in (SamplingParams, StructuredOutputsParams, EngineConfig):
        for field in options_of(made):
            if field.metadata["cli"]:
                name = renamed.get((made, field.name), field.name)
                assert f"--{name.replace('_', '-')}" in flags


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("generate hi --temperature -1", "decodex generate: error: temperature: got -1.0, expected"),
        ("generate hi --max-num-seqs 0", "decodex generate: error: max_num_seqs: got 0, expected"),
        ("chat --n 2", "decodex chat: error: n: got 2, expected 1"),
        ("generate hi --regex a --choice b", "decodex generate: error: structured_outputs: got 'regex and choice'"),
        ("generate hi --finish-within-budget", "decodex generate: error: --finish-within-budget: got True"),
        ("generate hi --json-schema {", "decodex generate: error: structured_outputs.json: got '{', expected"),
        ("bench --model ./missing", "decodex bench: error: model './missing'"),
    ],
)
def test_a_refused_field_is_one_line(command: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(command.split())
    message = capsys.readouterr().err
    assert status == (1 if "missing" in command else 2)
    assert message.startswith(complaint)
    assert message.count("\n") == 1


def test_a_constraint_is_a_text_or_the_name_of_a_file(tmp_path: pathlib.Path) -> None:
    schema = '{"type": "integer"}'
    file = tmp_path / "schema.json"
    file.write_text(schema, encoding="utf-8")
    parser = build_parser()
    for value in (schema, str(file)):
        arguments = parser.parse_exactly(["hi", "--json-schema", value, "--json-whitespace", "compact"])
        params = sampling_params(arguments, {})
        assert params.structured_outputs == StructuredOutputsParams(json=schema, whitespace="compact")
    argv = ["hi", "--choice", "a", "--choice", "b", "--grammar-backend", "outlines"]
    choice = sampling_params(parser.parse_exactly(argv), {})
    assert choice.structured_outputs == StructuredOutputsParams(choice=("a", "b"), backend="outlines")


def test_an_unknown_command_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["genrate"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "decodex: error: unknown command 'genrate'; did you mean 'generate'?\n"


def test_help_shows_every_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        toy_parser().parse_exactly(["--help"])
    assert stopped.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "100% of it (default: 1)" in text
    assert "a switch (default: on)" in text
    assert "numbers (default: none)" in text


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("generate hi --best-of 2", "--best-of: best_of ranks by a likelihood"),
        ("generate hi --mirostat 2", "--mirostat: Mirostat steers a state"),
        ("generate hi --logprobs 2", "logprobs: got 2, expected --json"),
        ("chat --prompt-logprobs 0", "prompt_logprobs: got 0, expected None in a chat"),
    ],
)
def test_what_would_be_ignored_is_refused(command: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status: object = main(command.split())
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "field"),
    [('{"method": "ngrm"}', "speculative.method"), ("xx", "speculative"), ('{"model": "x"}', "speculative.model")],
)
def test_a_bad_speculative_flag_names_the_field(text, field):
    parser = Parser(prog="x")
    add_flags(parser, SamplingParams)
    values = given(parser.parse_exactly(["--speculative", text]), SamplingParams)
    with pytest.raises(RequestError, match=rf"^{field}: got"):
        SamplingParams(**values)


def test_speculation_as_flags():
    parser = Parser(prog="x")
    add_flags(parser, SamplingParams)
    add_flags(parser, EngineConfig, rename={"seed": "engine_seed"})
    argv = [
        "--speculative",
        '{"method": "ngram"}',
        "--prediction",
        "a text",
        "--spec-method",
        "suffix",
        "--spec-tokens",
        "3",
    ]
    parsed = parser.parse_exactly(argv)
    params = SamplingParams(**given(parsed, SamplingParams))
    assert (params.speculative, params.prediction) == ({"method": "ngram"}, "a text")
    config = EngineConfig(**given(parsed, EngineConfig)).speculative_config
    assert (config.method, config.max_depth) == ("suffix", 3)
    assert EngineConfig(speculative_config="false").speculative_config is False
