"""Memory and start-up of one engine process at batch 32: writes evals/results/footprint.json.

    .venv/bin/python evals/footprint/run.py

`overhead_mib` is what the process holds at most beyond itself after its imports, the packed weights and the whole
KV pool. The pool is sized so that the run fills it. `first_token_s` counts from the start of the interpreter.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

from decodex.cli.machine import machine_facts, version_facts

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BATCH = 32
KV_GIB = 0.25

CHILD = f"""
import json, resource, time, psutil
start = psutil.Process().create_time()
import torch, tokenizers, jinja2, tqdm, numpy
import decodex.async_llm
from decodex import LLM, SamplingParams
process = psutil.Process()
imports = process.memory_info().rss
llm = LLM("smollm2-135m", kv_cache_gib={KV_GIB})
loaded = process.memory_info().rss
one = [{{"role": "user", "content": "What is a glacier?"}}]
stream = llm.stream_chat(one, SamplingParams(temperature=0, max_tokens=8))
next(stream)
first = time.time() - start
stream.close()
params = SamplingParams(temperature=0.8, top_p=0.9, seed=1, max_tokens=100, ignore_eos=True)
chats = [[{{"role": "user", "content": f"Tell me about the number {{i}}. " * 4}}] for i in range({BATCH})]
outputs = llm.chat(chats, params, use_tqdm=False)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
kv = sum(t.numel() * 4 for t in (*llm.engine.runner.kv.k, *llm.engine.runner.kv.v))
tokens = sum(len(o.prompt_token_ids) + len(o.outputs[0].token_ids) for o in outputs)
per_token = sum(layer.nbytes_per_token for layer in llm.engine.model.kv_spec)
print(json.dumps(dict(imports=imports, loaded=loaded, peak=peak, kv=kv, kv_used=tokens * per_token,
                      weights=llm.engine.model.weight_nbytes, first_token_s=first)))
"""


def main() -> None:
    """Measure in a fresh process; the second of two starts counts (the first may fetch and convert the model)."""
    for _ in range(2):
        run = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=False)
        if run.returncode != 0:
            sys.exit(run.stderr)
    facts = json.loads(run.stdout)
    mib = {name: round(value / 2**20, 1) for name, value in facts.items() if name != "first_token_s"}
    overhead = mib["peak"] - mib["imports"] - mib["weights"] - mib["kv"]
    result = {
        "batch": BATCH,
        "mib": mib,
        "overhead_mib": round(overhead, 1),
        "first_token_s": round(facts["first_token_s"], 2),
        "machine": machine_facts(),
        "versions": version_facts("decodex", "torch"),
    }
    text = json.dumps(result, indent=2)
    path = ROOT / "evals" / "results" / "footprint.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
