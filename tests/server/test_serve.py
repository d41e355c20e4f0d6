"""`decodex serve`: found through its entry point, and its mistakes are answered in one line."""

from __future__ import annotations

import pytest

from decodex.cli import main
from decodex.cli.flags import given
from decodex.definition import options_of
from decodex.errors import RequestError
from decodex.server.config import ServerConfig
from decodex.server.serve import build_parser, served_name


def test_the_command_is_listed_and_has_a_flag_for_every_option(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "serve         serve a model to OpenAI clients over HTTP\n" in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for option in options_of(ServerConfig):
        assert f"--{option.name.replace('_', '-')}" in shown, option.name
    assert "--kv-cache-gib" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prot", "1"], "unknown argument --prot; did you mean '--port'?"),
        (["--port", "x"], "got 'x', expected an integer"),
        (["--tool-call-format", "xml"], "expected one of auto, hermes"),
    ],
)
def test_mistakes_in_flags(arguments, message, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["serve", *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "99999"], "port: got 99999"),
        (["--max-n", "0"], "max_n: got 0"),
        (["--drain-timeout", "-1"], "drain_timeout: got -1"),
        (["--request-timeout", "0"], "request_timeout: got 0"),
        (["--api-key", ""], "--api-key: got nothing"),
        (["--dtype", "float32", "--block-size", "0"], "block_size: got 0"),
    ],
)
def test_mistakes_in_options_are_told_before_the_model_is_loaded(arguments, message, capsys):
    try:
        status = main(["serve", "--model", "/nowhere", *arguments])
    except SystemExit as exit:
        status = exit.code
    assert status == 2
    assert message in capsys.readouterr().err


def test_a_model_that_is_not_there(capsys):
    assert main(["serve", "--model", "/nowhere"]) == 1
    assert "/nowhere" in capsys.readouterr().err


def test_lists_and_files(tmp_path):
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages }}")
    arguments = ["--api-key", "a", "--api-key", "b", "--chat-template", str(template), "--cors-origins", "*"]
    found = given(build_parser().parse_exactly(arguments), ServerConfig)
    config = ServerConfig(**found)
    assert config.keys == ("a", "b")
    assert config.origins == ("*",)
    assert config.chat_template == "{{ messages }}"


def test_names_of_models(tmp_path):
    (tmp_path / "model").mkdir()
    assert served_name("org/name") == "org/name"
    assert served_name("smollm2-135m") == "smollm2-135m"
    assert served_name(str(tmp_path / "model")) == "model"


def test_unknown_options():
    with pytest.raises(RequestError, match="did you mean 'max_n'"):
        ServerConfig(max_m=3)
    with pytest.raises(RequestError, match="host"):
        ServerConfig(host="")
    assert ServerConfig().host == "127.0.0.1"
    assert not ServerConfig().origins
