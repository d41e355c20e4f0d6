"""Milliseconds for all linear layers of SmolLM2-135M at M rows: ours, F.linear and oneDNN-packed, interleaved.

The sum over layers of each layer's best time: what a busy machine disturbs least.

python evals/kernels/linear.py [--rows 1,2,4,6,8,16,32,256] [--kinds bf16,int8] [--peers] [--repeats 7]
"""

import argparse
import json
import platform
import time
from collections.abc import Callable

import torch
from torch import Tensor

from decodex.kernels import backend
from decodex.kernels.linear import PackedLinear, pack_linear
from decodex.kernels.reference import linear as reference

LAYERS = 30
SHAPES = [(960, 576), (576, 576), (3072, 576), (576, 1536)]  # qkv, o, gate_up, down: [N, K]
HEAD = (49152, 576)


def layer_weights() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = SHAPES * LAYERS + [HEAD]
    return [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]


def run_once(layers: list[Callable[[Tensor], Tensor]], inputs: dict[int, Tensor], widths: list[int]) -> list[float]:
    """Milliseconds of each layer, in one pass over all of them (so that weights come from memory)."""
    times = []
    for layer, width in zip(layers, widths):
        start = time.perf_counter()
        layer(inputs[width])
        times.append((time.perf_counter() - start) * 1e3)
    return times


def packed_layers(weights: list[Tensor], kind: str) -> list[Callable[[Tensor], Tensor]]:
    packed: list[PackedLinear] = [pack_linear(w, kind=kind) for w in weights]  # type: ignore[arg-type]
    outs: dict[tuple[int, int], Tensor] = {}

    def call(layer: PackedLinear) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            key = (x.shape[0], layer.out_features)
            if key not in outs:
                outs[key] = torch.empty(key)
            return layer(x, out=outs[key])

        return forward

    return [call(layer) for layer in packed]


def build(kinds: list[str], peers: bool) -> dict[str, list[Callable[[Tensor], Tensor]]]:
    weights = layer_weights()
    bodies = {f"decodex {kind}": packed_layers(weights, kind) for kind in kinds}
    if peers:
        wide = [w.float() for w in weights]
        bodies["F.linear fp32"] = [lambda x, w=w: torch.nn.functional.linear(x, w) for w in wide]  # type: ignore[misc]
        onednn = [reference.onednn_pack(w) for w in wide]
        bodies["oneDNN fp32"] = [lambda x, w=w: reference.linear_onednn(x, w, None) for w in onednn]  # type: ignore[misc]
    return bodies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,2,4,6,8,16,32,256")
    parser.add_argument("--kinds", default="bf16")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    rows = [int(m) for m in options.rows.split(",")]
    widths = [k for _, k in SHAPES] * LAYERS + [HEAD[1]]
    bodies = build(options.kinds.split(","), options.peers)
    table: dict[str, dict[int, float]] = {name: {} for name in bodies}
    for m in rows:
        inputs = {k: torch.randn(m, k) for k in set(widths)}
        times: dict[str, list[list[float]]] = {name: [] for name in bodies}
        for _ in range(options.repeats + 1):
            for name, layers in bodies.items():
                times[name].append(run_once(layers, inputs, widths))
        for name in bodies:
            table[name][m] = round(sum(min(layer) for layer in zip(*times[name][1:])), 2)
    for name, line in table.items():
        print(f"{name:16}", "  ".join(f"M={m}: {ms:.1f}" for m, ms in line.items()))
    where = {
        "isa": backend.isa(),
        "threads": torch.get_num_threads(),
        "machine": platform.processor() or platform.machine(),
    }
    print(json.dumps({"ms": table, "torch": torch.__version__, **where}))


if __name__ == "__main__":
    main()
