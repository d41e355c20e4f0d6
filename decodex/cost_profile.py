"""What a step of the loaded model costs by its rows, measured once for a machine and kept in the cache folder."""

from __future__ import annotations

import json
import logging
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from decodex.kv_cache import KVCache
from decodex.models.cache_folder import cache_dir
from decodex.models.interface import CausalLM
from decodex.models.invariance import flat_batch
from decodex.spec.costs import CostModel

__all__ = ["step_costs"]

logger = logging.getLogger(__name__)

# costs jump where a kernel needs one tile more
NUM_ROWS = (*range(1, 18), 20, 24, 25, 28, 32, 33, 40, 48, 49, 64, 65, 80, 81, 96, 97, 128)
REPEATS = 3
CHECKED_ROWS = (1, 8)  # at each start: a profile that was taken on a busy machine is taken again
SLOW = 1.3
SHARING = 4  # rows of one sequence, as draft rows are
CONTEXT = 64  # tokens before each row
FAR_CONTEXT, FAR_ROWS = 320, 32  # what more of them cost is measured here
STEP_SECONDS = 5e-4  # of scheduling, sampling and text in a step,
ROW_SECONDS = 6e-5  # and for each of its rows


def step_costs(model: CausalLM, fingerprint: str, device: torch.device) -> CostModel:
    """Profiled now, or by an earlier start on this machine with as many threads."""
    name = f"costs2-{fingerprint}-{platform.node()}-{torch.get_num_threads()}of{os.cpu_count()}.json"
    path = cache_dir() / "costs" / name
    try:
        found = json.loads(path.read_text("utf-8"))
        points, token_seconds = {int(r): float(s) for r, s in found["rows"].items()}, float(found["token_seconds"])
        if sorted(points) == list(NUM_ROWS) and not _is_slow(points, model, device):
            return _costs(points, token_seconds)
    except (OSError, ValueError, AttributeError, TypeError, KeyError):  # absent or damaged: measured again
        pass
    points = dict(measured(model, device))
    far = measured(model, device, (FAR_ROWS,), FAR_CONTEXT)[FAR_ROWS]
    token_seconds = max(far - points[FAR_ROWS], 0.0) / (FAR_ROWS * (FAR_CONTEXT - CONTEXT))
    try:
        path.parent.mkdir(exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({"rows": points, "token_seconds": token_seconds}), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        logger.info("step costs can't be kept in %s: %s", path, error)
    return _costs(points, token_seconds)


def _costs(points: Mapping[int, float], token_seconds: float) -> CostModel:
    return replace(CostModel.profiled(points), context=CONTEXT, token_seconds=token_seconds)


def _is_slow(points: Mapping[int, float], model: CausalLM, device: torch.device) -> bool:
    """Whether the machine was busy with something else when these were measured."""
    now = measured(model, device, CHECKED_ROWS)
    return any(points[rows] > SLOW * now[rows] for rows in CHECKED_ROWS)


def measured(
    model: CausalLM, device: torch.device, num_rows: Sequence[int] = NUM_ROWS, context: int = CONTEXT
) -> Mapping[int, float]:
    """Seconds of a step by rows, each with so many tokens before it; the least of a few runs, by turns."""
    blocks = -(-(context + SHARING) // 16)
    kv = KVCache(model.kv_spec, -(-max(num_rows) // SHARING) * blocks, 16, device)
    for cache in (*kv.k, *kv.v):
        cache.zero_()
    batches = {}
    for rows in num_rows:
        spans = [(i, [1] * min(SHARING, rows - i * SHARING), context) for i in range(-(-rows // SHARING))]
        batches[rows] = flat_batch(spans, blocks, 16, device)
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
