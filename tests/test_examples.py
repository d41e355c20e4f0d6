"""The examples run as they stand."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re
import sys
from typing import Any

import pytest


def load(repository: pathlib.Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, repository / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.real_model
def test_structured_output(repository: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    review, choice, date, faults = load(repository, "structured_output").main("smollm2-135m")
    assert set(json.loads(review)) == {"product", "sentiment", "stars"}
    assert choice in ("kitchen", "garden", "office")
    assert re.fullmatch(r"(January|March|May|July) \d{4}", date)
    assert isinstance(json.loads(faults), list)
    printed = capsys.readouterr().out
    assert printed.startswith("Review product=")
    assert "$.properties.a ($ref)" in printed


@pytest.mark.slow
@pytest.mark.real_model
def test_transformers_loop(repository: pathlib.Path) -> None:
    first, second = load(repository, "transformers_loop").main("smollm2-135m", max_tokens=12).split("\n---\n")
    assert first
    assert second
    assert "pple" not in first


@pytest.mark.slow
@pytest.mark.real_model
def test_speculation(repository: pathlib.Path) -> None:
    for guessed, plain in load(repository, "speculation").main("smollm2-135m"):
        assert guessed.outputs == plain.outputs
        metrics = guessed.metrics.speculation
        assert metrics is not None
        assert metrics.tokens_per_step > 1.2
        assert plain.metrics.speculation is None
