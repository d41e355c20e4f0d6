"""The thinking budget on a tokenizer of Qwen3's form (markers are added tokens) and on one that spells markers out."""

from __future__ import annotations

import json

import pytest
import tokenizers
from fakes import FakeModel, RandomProposer, hash_logits, make_engine
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from decodex.errors import RequestError
from decodex.params import SamplingParams
from decodex.tokenizer import Tokenizer

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def make_tokenizer(folder, markers: bool) -> Tokenizer:
    """Byte-level BPE with Qwen3's control tokens: <|im_end|> is special, <think> and </think> are only added."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(["I think that this is a thought.\n\n", "</thing> <the> </tea> think>\n"] * 5, trainer)
    backend.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    if markers:
        backend.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    backend.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE, "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer(folder)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return make_tokenizer(tmp_path_factory.mktemp("qwen"), True)


@pytest.fixture(scope="module")
def spelled(tmp_path_factory):
    return make_tokenizer(tmp_path_factory.mktemp("spelled"), False)


def generate(tokenizer, prompt, proposer=None, forced=(), **params):
    """`forced`: tokens that the model gives at output place i, whatever it reads."""

    def logits_of(prefix):
        logits = hash_logits(prefix, tokenizer.vocab_size)
        logits[list(tokenizer.special_ids)] = -20
        place = len(prefix) - len(prompt)
        if place < len(forced):
            logits[forced[place]] = 50
        return logits

    model = FakeModel(tokenizer.vocab_size, logits_of=logits_of)
    engine = make_engine(model=model, tokenizer=tokenizer, proposer=proposer)
    options = {"seed": 5, "max_tokens": 40, "ignore_eos": True, **params}
    request = engine.admission.admit(prompt, SamplingParams(**options))
    engine.add(request)
    while engine.has_work:
        engine.step()
    return engine.output_of(request).outputs[0]


def chat(tokenizer, **options):
    return tokenizer.apply_chat_template([{"role": "user", "content": "think"}], **options)


@pytest.mark.parametrize("drafts", [None, "chain", "tree"])
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_end_marker_is_forced_when_the_budget_is_spent(qwen, drafts, budget):
    start, end = qwen.token_to_id("<think>"), qwen.token_to_id("</think>")
    assert start not in qwen.special_ids
    proposer = None if drafts is None else RandomProposer(3, qwen.vocab_size, chain=drafts == "chain")
    output = generate(qwen, chat(qwen), proposer, forced=[start], max_thinking_tokens=budget)
    assert output.token_ids[0] == start
    assert output.token_ids.index(end) == budget + 1
    assert len(output.token_ids) == 40, "the answer goes on"


def test_a_block_that_the_prompt_opens_or_closes(qwen):
    start, end = qwen.token_to_id("<think>"), qwen.token_to_id("</think>")
    opened = [*chat(qwen), start, *qwen.encode("\n")]
    assert generate(qwen, opened, max_thinking_tokens=4).token_ids.index(end) == 4
    closed = chat(qwen, enable_thinking=False)
    assert end in closed
    free, bounded = generate(qwen, closed), generate(qwen, closed, max_thinking_tokens=0)
    assert free.token_ids == bounded.token_ids, "outside a block nothing is forced"


def test_an_early_end_and_a_second_block_share_the_budget(qwen):
    start, end = qwen.token_to_id("<think>"), qwen.token_to_id("</think>")
    forced = [start, 1, 2, end, 3, start]
    output = generate(qwen, chat(qwen), forced=forced, max_thinking_tokens=5)
    assert output.token_ids[:6] == forced
    assert output.token_ids[6:].index(end) == 3


@pytest.mark.parametrize("prefix", ["", "<", "</", "</t", "</thin"])
def test_marker_of_several_tokens_is_completed(spelled, prefix):
    """Whatever part of the marker stands there when the budget ends, the text has exactly one whole marker."""
    think = spelled.encode("<think>")
    assert len(think) > 1
    part = spelled.encode(prefix) if prefix else []
    forced = [*think, 1, *part]
    output = generate(spelled, chat(spelled), forced=forced, max_thinking_tokens=1 + len(part))
    assert output.text.count("</think>") == 1
    assert output.text.index("</think>") == len("<think>") + len(spelled.decode([1]))


def test_sampling_parameters_don_t_move_the_marker(qwen):
    start, end = qwen.token_to_id("<think>"), qwen.token_to_id("</think>")
    more = {"repetition_penalty": 2.0, "presence_penalty": 2.0, "top_k": 1, "dry_multiplier": 5.0, "min_p": 1.0}
    output = generate(qwen, [*chat(qwen), end, start], max_thinking_tokens=2, temperature=1.5, **more)
    assert output.token_ids.index(end) == 2


def test_allowed_tokens_without_the_marker_are_refused(qwen):
    engine = make_engine(model=FakeModel(qwen.vocab_size), tokenizer=qwen)
    params = SamplingParams(max_thinking_tokens=3, allowed_token_ids=[1, 2])
    with pytest.raises(RequestError, match=r"allowed_token_ids.*max_thinking_tokens forces"):
        engine.admission.admit([1], params)
