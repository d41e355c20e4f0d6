"""What a step of the loaded model costs by its rows, measured once for a machine and kept in the cache folder."""

from __future__ import annotations

import json
import logging
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from decodex.kv_cache import KVCache
from decodex.models.cache_folder import cache_dir
from decodex.models.interface import CausalLM
from decodex.models.invariance import flat_batch
from decodex.spec.costs import CostModel

__all__ = ["step_costs"]

logger = logging.getLogger(__name__)

NUM_ROWS = (*range(1, 18), 20, 24, 25, 28, 32, 40, 48, 64, 96)  # costs jump where a kernel needs one tile more
REPEATS = 3
CHECKED_ROWS = (1, 8)  # at each start: a profile that was taken on a busy machine is taken again
SLOW = 1.3
CONTEXT = 64  # tokens before each row
STEP_SECONDS = 5e-4  # of scheduling, sampling and text in a step,
ROW_SECONDS = 6e-5  # and for each of its rows


def step_costs(model: CausalLM, fingerprint: str, device: torch.device) -> CostModel:
    """Profiled now, or by an earlier start on this machine with as many threads."""
    name = f"costs-{fingerprint}-{platform.node()}-{torch.get_num_threads()}of{os.cpu_count()}.json"
    path = cache_dir() / "costs" / name
    try:
        points = {int(rows): float(seconds) for rows, seconds in json.loads(path.read_text("utf-8")).items()}
        if sorted(points) == list(NUM_ROWS) and not _is_slow(points, model, device):
            return CostModel.profiled(points)
    except (OSError, ValueError, AttributeError):  # absent or damaged: measured again
        pass
    points = dict(measured(model, device))
    try:
        path.parent.mkdir(exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(points), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        logger.info("step costs can't be kept in %s: %s", path, error)
    return CostModel.profiled(points)


def _is_slow(points: Mapping[int, float], model: CausalLM, device: torch.device) -> bool:
    """Whether the machine was busy with something else when these were measured."""
    now = measured(model, device, CHECKED_ROWS)
    return any(points[rows] > SLOW * now[rows] for rows in CHECKED_ROWS)


def measured(model: CausalLM, device: torch.device, num_rows: Sequence[int] = NUM_ROWS) -> Mapping[int, float]:
    """Seconds of a step by rows; the least of a few runs, by turns."""
    blocks = -(-(CONTEXT + 1) // 16)
    kv = KVCache(model.kv_spec, max(num_rows) * blocks, 16, device)
    for cache in (*kv.k, *kv.v):
        cache.zero_()
    batches = {rows: flat_batch([(i, [1], CONTEXT) for i in range(rows)], blocks, 16, device) for rows in num_rows}
    wait: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    best = dict.fromkeys(num_rows, float("inf"))
    model.forward(batches[num_rows[0]], kv)
    for _ in range(REPEATS):
        for rows, batch in batches.items():
            wait()
            start = time.perf_counter()
            model.forward(batch, kv)
            wait()
            best[rows] = min(best[rows], time.perf_counter() - start)
    return {rows: seconds + STEP_SECONDS + rows * ROW_SECONDS for rows, seconds in best.items()}
