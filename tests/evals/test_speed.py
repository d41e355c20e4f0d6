"""The arithmetic and the process handling of evals/speed, with processes that stand in for engines."""

from __future__ import annotations

import argparse
import importlib.util
import pathlib
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

STAND_IN = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if sys.argv[1] == "bad" and len(request["prompts"]) > 1:
        print(json.dumps({"ok": False, "error": "ValueError: too many"}), flush=True)
    elif sys.argv[1] == "dead":
        sys.exit(1)
    else:
        tokens = len(request["prompts"]) * request["max_tokens"]
        seconds = tokens / float(sys.argv[1].strip("bad") or 1)
        print(json.dumps({"ok": True, "seconds": seconds, "tokens": tokens}), flush=True)
"""


@pytest.fixture(scope="module")
def speed(repository: pathlib.Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("speed_run", repository / "evals" / "speed" / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def start(speed: types.ModuleType) -> Iterator[Callable[..., object]]:
    started = []

    def make(engine: str, variant: str, behaviour: str) -> object:
        command = [sys.executable, "-c", STAND_IN, behaviour]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(command, text=True, start_new_session=True, **pipes)
        started.append(speed.Worker(engine, variant, process))
        return started[-1]

    yield make
    for worker in started:
        worker.stop()


def options(rounds: int) -> argparse.Namespace:
    return argparse.Namespace(rounds=rounds, warm_up_tokens=1, max_tokens=2, pause=0.0, singles=3)


def prompts(speed: types.ModuleType) -> Any:
    return speed.Prompts([[1], [2], [3]], [([number], {"type": "integer"}) for number in range(3)])


def test_the_faster_variant_is_compared_and_a_slow_one_is_not_repeated(
    speed: types.ModuleType, start: Callable[..., object]
) -> None:
    workers = [
        start("decodex", "plain", "60"),
        start("decodex", "heads", "90"),
        start("peer", "bfloat16", "10"),
        start("peer", "float32", "40"),
    ]
    cases = [speed.Case(1, "greedy"), speed.Case(2, "top_p")]
    result = speed.measure(workers, cases, prompts(speed), options(3))
    facts = speed.report(workers, cases, result, {"other/float32": "absent"})
    assert facts["ratios"] == {
        "peer": {
            "greedy/1": {"ratio": 1.5, "against": "float32"},
            "top_p/2": {"ratio": 1.5, "against": "float32"},
        }
    }
    assert facts["ratios_with_heads"] == {
        "decodex, plain": {"greedy/1": 1.5, "top_p/2": 1.5},
        "peer": {
            "greedy/1": {"ratio": 2.25, "against": "float32"},
            "top_p/2": {"ratio": 2.25, "against": "float32"},
        },
    }
    assert facts["rounds"]["greedy/1 peer/bfloat16"] == pytest.approx([10.0, None, None])
    assert facts["rounds"]["greedy/1 peer/float32"] == pytest.approx([40.0, 40.0, 40.0])
    assert facts["absent"] == {"other/float32": "absent"}


def test_a_peer_that_fails_is_reported_and_the_others_go_on(
    speed: types.ModuleType, start: Callable[..., object]
) -> None:
    ours = [start("decodex", variant, "60") for variant in ("plain", "heads")]
    workers = [*ours, start("peer", "float32", "bad"), start("gone", "float32", "dead")]
    cases = [speed.Case(1, "greedy"), speed.Case(2, "greedy")]
    result = speed.measure(workers, cases, prompts(speed), options(1))
    facts = speed.report(workers, cases, result, {})
    assert facts["failed"] == {
        "peer/float32": "peer/float32: ValueError: too many",
        "gone/float32": "gone/float32: the process ended",
    }
    assert facts["ratios"] == {}
    assert facts["tokens_per_second"]["greedy/2"]["decodex/plain"] == 60.0


def test_a_worker_that_is_not_asked_is_stopped(speed: types.ModuleType, start: Callable[..., object]) -> None:
    worker, case = start("decodex", "plain", "60"), speed.Case(1, "greedy")
    assert speed.speed_of(worker, case, prompts(speed).requests(case, 1), 2) == 60.0
    process = psutil.Process(worker.process.pid)  # type: ignore[attr-defined]
    for _ in range(100):
        if process.status() == psutil.STATUS_STOPPED:
            break
        time.sleep(0.01)
    assert process.status() == psutil.STATUS_STOPPED


def test_prompts_of_a_batch_of_one_are_asked_one_by_one_and_schemas_of_those_who_can(
    speed: types.ModuleType, start: Callable[..., object]
) -> None:
    asked = prompts(speed)
    assert [request["prompts"] for request in asked.requests(speed.Case(1, "greedy"), 3)] == [[[1]], [[2]], [[3]]]
    assert [len(request["prompts"]) for request in asked.requests(speed.Case(2, "greedy"), 3)] == [2]
    case = speed.Case(1, "json")
    requests = asked.requests(case, 2)
    assert [tuple(request["schemas"]) for request in requests] == [({"type": "integer"},)] * 2
    ours, theirs = start("decodex", "plain", "60"), start("vllm", "float32", "60")
    assert speed.speed_of(ours, case, requests, 2) == 60.0
    assert speed.speed_of(theirs, case, requests, 2) is None
