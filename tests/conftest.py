"""Shared test set-up: one Hypothesis profile, markers decided by what this machine has."""

from __future__ import annotations

import os
import pathlib
import signal

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "decodex", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "decodex"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: Ctrl-C is tested all the same
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def repository() -> pathlib.Path:
    """The root folder of this checkout."""
    return pathlib.Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip `gpu` tests, with the reason, where there is no CUDA device."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(skip)
