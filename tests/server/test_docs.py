"""docs/server.md: every example runs as it stands, against the server that it starts; its tables are the code's."""

from __future__ import annotations

import pathlib
import re
import shlex
import subprocess

import pytest
from http_client import real_server

from decodex.server.field_docs import with_fields
from decodex.server.sampling import TABLE

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "server.md"
HOST = "http://127.0.0.1:8000"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
CURLS = [code for kind, code in BLOCKS if kind == "sh"]
PYTHON = [code for kind, code in BLOCKS if kind == "python"]
EXTENSIONS = [name for name, known in TABLE.items() if not known.is_ignored]


def test_the_tables_are_up_to_date():
    """The page's last section: python -m decodex.server.field_docs docs/server.md."""
    page = PAGE.read_text("utf-8")
    assert page == with_fields(page)
    for name in TABLE:
        assert f"`{name}`" in page


@pytest.mark.parametrize("name", EXTENSIONS)
def test_every_field_has_an_example_of_each_kind(name):
    assert f'"{name}"' in "".join(CURLS)
    if name != "response_format":  # which the client's parse() makes
        assert re.search(rf'"{name}"|\b{name}=', "".join(PYTHON))
    else:
        assert "response_format=" in "".join(PYTHON)


@pytest.fixture(scope="module")
def url():
    [command] = [code for kind, code in BLOCKS if kind == "console"]
    program, verb, *options = shlex.split(command)
    assert (program, verb) == ("decodex", "serve")
    with real_server(*options) as address:
        yield address


@pytest.mark.real_model
@pytest.mark.parametrize("code", CURLS, ids=range(len(CURLS)))
def test_curl(url, code):
    code = code.replace("curl -", "curl --fail-with-body -").replace(HOST, url)
    done = subprocess.run(["bash", "-e"], input=code, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
    assert '"error":{"message"' not in done.stdout  # in a stream


@pytest.mark.real_model
def test_openai_client(url, capsys):
    """One script, cut into pieces by the page's text."""
    script = "\n".join(PYTHON).replace(HOST, url)
    exec(compile(script, str(PAGE), "exec", dont_inherit=True), {"__name__": "examples"})
    assert "did you mean 'top_k'" in capsys.readouterr().out
