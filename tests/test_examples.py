"""The examples run as they stand."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest


@pytest.mark.slow
@pytest.mark.real_model
def test_transformers_loop(repository: pathlib.Path) -> None:
    spec = importlib.util.spec_from_file_location("transformers_loop", repository / "examples/transformers_loop.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    first, second = module.main("smollm2-135m", max_tokens=12).split("\n---\n")
    assert first
    assert second
    assert "pple" not in first
