"""The demo model, whole: transformers' greedy tokens, and a start without transformers."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import transformers

from decodex.kernels.attention import RowContexts
from decodex.kv_cache import KVCache
from decodex.models.interface import CausalLM, ForwardBatch
from decodex.models.loader import load_model
from decodex.models.source import ModelFiles
from decodex.tokenizer import Tokenizer

pytestmark = pytest.mark.real_model
QUESTIONS = ["What is the capital of France?", "Write one sentence about 12345 rivers."]


def greedy(model: CausalLM, ids: list[int], num_new: int) -> tuple[list[int], list[float]]:
    """Tokens and the gap between the two best logits at each."""
    kv = KVCache(model.kv_spec, 8, 16, torch.device("cpu"))
    tables = torch.arange(8, dtype=torch.int32)[None]
    tokens, gaps, start, step = [], [], 0, list(ids)
    for _ in range(num_new):
        place = torch.arange(start, start + len(step), dtype=torch.int32)
        count = len(step)
        rows = RowContexts(
            tables,
            torch.zeros(count, dtype=torch.int32),
            place + 1,
            torch.zeros(count + 1, dtype=torch.int32),
            torch.zeros(0, dtype=torch.int64),
            16,
        )
        batch = ForwardBatch(torch.tensor(step), place, place.long(), rows, torch.tensor([count - 1]))
        best = model.forward(batch, kv).logits[0].topk(2)
        tokens.append(int(best.indices[0]))
        gaps.append(float(best.values[0] - best.values[1]))
        start += count
        step = tokens[-1:]
    return tokens, gaps


@pytest.mark.slow
def test_greedy_equals_transformers(demo_files: ModelFiles) -> None:
    tokenizer = Tokenizer.load(demo_files)
    model = load_model(demo_files)
    peer = transformers.AutoModelForCausalLM.from_pretrained(demo_files.path, dtype=torch.float32).eval()
    for question in QUESTIONS:
        ids = tokenizer.apply_chat_template([{"role": "user", "content": question}])
        tokens, gaps = greedy(model, ids, 16)
        wanted = peer.generate(
            torch.tensor([ids]), max_new_tokens=16, min_new_tokens=1, do_sample=False, eos_token_id=-1, pad_token_id=0
        )[0, len(ids) :].tolist()
        first = next((place for place, (a, b) in enumerate(zip(tokens, wanted)) if a != b), None)
        assert first is None or gaps[first] < 1e-4, (tokens, wanted)


def test_tokenizer_equals_transformers(demo_files: ModelFiles) -> None:
    ours, theirs = Tokenizer.load(demo_files), transformers.AutoTokenizer.from_pretrained(demo_files.path)
    texts = ["", " ", "Hello  world\n\n\tx", "naïve 東京 🙂🏽 1234.5", "<|im_start|>user<|im_end|>", "a" * 300]
    for text in texts:
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    chat = [{"role": role, "content": text} for role, text in (("user", "Hi"), ("assistant", "Yes?"), ("user", ""))]
    expected = theirs.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert ours.apply_chat_template(chat) == expected
    assert ours.eos_token_ids == {2}


def test_start_needs_no_transformers(demo_files: ModelFiles) -> None:
    """Importing transformers takes seconds; the lean path never does."""
    code = (
        "import sys\n"
        "from decodex.models.loader import load_model\n"
        "from decodex.models.source import resolve_model\n"
        "from decodex.tokenizer import Tokenizer\n"
        "files = resolve_model('smollm2-135m')\n"
        "model, tokenizer = load_model(files), Tokenizer.load(files)\n"
        "tokenizer.apply_chat_template([{'role': 'user', 'content': 'Hi'}])\n"
        "assert model.replayable and model.weight_nbytes < 275e6, model.weight_nbytes\n"
        "sys.exit('transformers' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
