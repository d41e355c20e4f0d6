"""SmolLM2-135M: greedy output and logits against transformers, and seeded output that never depends on the batch,
the order, the chunks, preemption or the prefix cache."""

from __future__ import annotations

import random

import pytest
import torch

from decodex import LLM, SamplingParams
from decodex.errors import ModelError
from decodex.kernels.attention import RowContexts
from decodex.kv_cache import KVCache
from decodex.models.interface import ForwardBatch
from decodex.models.loader import load_model
from decodex.models.source import resolve_model

pytestmark = pytest.mark.real_model

QUESTIONS = [
    "What is the capital of {}?", "Write one sentence about {}.", "List three things that people know about {}.",
    "Explain {} to a child.", "Translate 'I am going to {}' to French.", "Write a haiku about {}.",
    "What would you eat in {}?", "Is {} bigger than a city? Answer with a reason, please, and keep it short.",
]  # fmt: skip
SUBJECTS = ["France", "the Moon", "Lake Victoria", "Tokyo"]
NUM_NEW = 64
SEEDED = [
    SamplingParams(temperature=0.8, top_p=0.9, seed=1000 + i, max_tokens=NUM_NEW, ignore_eos=True) for i in range(32)
]


@pytest.fixture(scope="module")
def folder():
    try:
        return str(resolve_model("smollm2-135m").path)
    except ModelError as error:
        pytest.skip(f"the demo model can't be fetched here: {error}")


@pytest.fixture(scope="module")
def llm(folder):
    return LLM(folder, kv_cache_gib=0.5, enable_prefix_caching=False)


@pytest.fixture(scope="module")
def prompts(llm):
    """32 chat prompts as token ids; they share the template's beginning and differ in length."""
    texts = [question.format(subject) for question in QUESTIONS for subject in SUBJECTS]
    return [llm.tokenizer.apply_chat_template([{"role": "user", "content": text}]) for text in texts]


@pytest.fixture(scope="module")
def seeded(llm, prompts):
    """The seeded answers of one batch of 32."""
    return answers(llm, prompts)


@pytest.fixture(scope="module")
def reference(folder):
    """transformers with the same bf16 weights, computing in fp32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def answers(llm, prompts, params=None):
    outputs = llm.generate(prompts, SEEDED if params is None else params, use_tqdm=False)
    assert all(output.replayable for output in outputs)
    return [output.outputs[0].token_ids for output in outputs]


def all_logits(model, token_ids):
    """Logits of every row of one sequence, [T, V]."""
    num_tokens = len(token_ids)
    kv = KVCache(model.kv_spec, -(-num_tokens // 16), 16, torch.device("cpu"))
    rows = RowContexts(
        block_tables=torch.arange(kv.num_blocks, dtype=torch.int32)[None],
        row_slot=torch.zeros(num_tokens, dtype=torch.int32),
        ctx_lens=torch.arange(1, num_tokens + 1, dtype=torch.int32),
        anc_cu=torch.zeros(num_tokens + 1, dtype=torch.int32),
        anc_slots=torch.zeros(0, dtype=torch.int64),
        block_size=16,
    )
    places = torch.arange(num_tokens)
    return model.forward(ForwardBatch(torch.tensor(token_ids), places.int(), places, rows, places), kv).logits


@torch.no_grad()
def test_greedy_and_logits_equal_transformers(llm, prompts, reference, folder):
    """Token for token over 32 prompts x 64 tokens; where they part, the two best logits are within 1e-4."""
    greedy = SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True)
    outputs = answers(llm, prompts, greedy)
    generic = load_model(
        resolve_model(folder), dtype="auto", quantization=None, device=torch.device("cpu"), force_generic=True
    )
    sequences = [prompt + output for prompt, output in zip(prompts, outputs, strict=True)]
    for first in range(0, len(sequences), 8):
        some = [torch.tensor(ids) for ids in sequences[first : first + 8]]
        padded = torch.nn.utils.rnn.pad_sequence(some, batch_first=True)  # on the right: no row sees the padding
        for index, logits in enumerate(reference(padded).logits, first):
            ids, num_prompt = sequences[index], len(prompts[index])
            expected = logits[: len(ids)]
            # the expected greedy token at every place of our own output: equal up to the first divergence
            best = expected[num_prompt - 1 : -1].topk(2, dim=-1)
            for place, token in enumerate(ids[num_prompt:]):
                if token != best.indices[place, 0]:
                    gap = float(best.values[place, 0] - best.values[place, 1])
                    wanted = int(best.indices[place, 0])
                    assert gap <= 1e-4, f"prompt {index}: {token} instead of {wanted} at {place}, gap {gap}"
                    break
            assert (all_logits(llm.engine.model, ids) - expected).abs().max() < 1e-3
            if index % 8 == 0:
                assert (all_logits(generic, ids) - expected).abs().max() < 1e-3


def test_seeded_alone(llm, prompts, seeded):
    for prompt, params, expected in zip(prompts, SEEDED, seeded, strict=True):
        assert answers(llm, [prompt], [params]) == [expected]


def test_seeded_in_shuffled_arrival_order(llm, prompts, seeded):
    """Requests arrive in another order, a few steps apart."""
    order = list(range(32))
    random.Random(5).shuffle(order)
    engine, requests = llm.engine, {}
    while order or engine.has_work:
        for index in [order.pop() for _ in range(min(3, len(order)))]:
            requests[index] = engine.admission.admit(prompts[index], SEEDED[index])
            engine.add(requests[index])
        engine.step()
    for index, expected in enumerate(seeded):
        assert engine.output_of(requests[index]).outputs[0].token_ids == expected


@pytest.mark.parametrize("chunk", [16, 64, 512])
def test_seeded_in_prefill_chunks(folder, prompts, seeded, chunk):
    chunked = LLM(folder, kv_cache_gib=0.5, max_num_batched_tokens=chunk, max_num_seqs=16, enable_prefix_caching=False)
    assert answers(chunked, prompts) == seeded


@pytest.mark.parametrize("caching", [True, False])
def test_seeded_under_preemption(folder, prompts, seeded, caching):
    small = LLM(folder, kv_cache_gib=0.04, max_num_seqs=32, enable_prefix_caching=caching)
    outputs = small.generate(prompts, SEEDED, use_tqdm=False)
    assert sum(output.metrics.num_preemptions for output in outputs) > 5
    assert [output.outputs[0].token_ids for output in outputs] == seeded
    assert small.engine.scheduler.pool.num_free == small.engine.config.num_blocks


def test_seeded_with_prefix_cache(folder, prompts, seeded):
    cached = LLM(folder, kv_cache_gib=0.5)
    assert answers(cached, prompts) == seeded
    outputs = cached.generate(prompts, SEEDED, use_tqdm=False)
    assert sum(output.metrics.num_cached_tokens for output in outputs) > 500
    assert [output.outputs[0].token_ids for output in outputs] == seeded


def test_text_is_the_tokens_decoded_at_once(llm, prompts):
    """Streamed text grows, and ends as the one-shot decoding."""
    params = SamplingParams(temperature=1.3, seed=3, max_tokens=60, ignore_eos=True)
    prompt = llm.tokenizer.apply_chat_template([{"role": "user", "content": "Write emojis and 中文 words."}])
    shown = ""
    for output in llm.stream(prompt, params):
        assert output.outputs[0].text.startswith(shown)
        shown = output.outputs[0].text
    assert shown == llm.tokenizer.decode(output.outputs[0].token_ids)


@pytest.fixture(scope="module")
def plain(folder, prompts):
    """The seeded answers without any speculation."""
    return answers(LLM(folder, kv_cache_gib=0.5, speculative_config=False), prompts)


def test_what_is_on_by_default_changes_no_token(seeded, plain):
    assert seeded == plain


@pytest.mark.parametrize("method", ["eagle3", "mtp"])
def test_a_shipped_head_drafts_well_and_changes_no_token(folder, prompts, plain, method):
    """More than a quarter of its first guesses are right at temperature 0.8; one in 49,152 would be by chance."""
    config = {"method": method, "num_speculative_tokens": 4, "control": False}
    llm = LLM(folder, kv_cache_gib=0.5, speculative_config=config)
    outputs = llm.generate(prompts, SEEDED, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == plain
    found = [output.metrics.speculation for output in outputs]
    drafted, accepted = sum(each.drafted_at[0] for each in found), sum(each.accepted_at[0] for each in found)
    assert drafted > 32 * NUM_NEW / 5
    assert accepted > drafted / 4
