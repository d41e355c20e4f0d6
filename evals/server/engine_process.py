"""The engine by itself, in a process that answers JSON lines: `all`, a batch of conversations, and `first`, the time to
one conversation's first token."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from decodex import LLM, SamplingParams

__all__ = ["main"]


def answer(llm: LLM, request: dict[str, Any]) -> dict[str, Any]:
    """Do what one line asks for."""
    params = [SamplingParams(**fields) for fields in request["params"]]
    start = time.perf_counter()
    if request["op"] == "first":
        [conversation], [one] = request["conversations"], params
        stream = llm.stream_chat(conversation, one)
        next(stream)
        seconds = time.perf_counter() - start
        stream.close()
        return {"seconds": seconds}
    outputs = llm.chat(request["conversations"], params, use_tqdm=False)
    seconds = time.perf_counter() - start
    choices = [output.outputs[0] for output in outputs]
    return {
        "seconds": seconds,
        "texts": [choice.text for choice in choices],
        "num_tokens": sum(len(choice.token_ids) for choice in choices),
    }


def main() -> None:
    """Load the model of the first line, then answer lines until there are none."""
    llm = LLM(**json.loads(sys.stdin.readline()))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(llm, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
