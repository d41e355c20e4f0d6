"""Stand-ins for model, tokenizer and proposers. All fakes live here.

The fake model keeps what it was given in the paged KV cache (token id and position of every slot) and rebuilds each
row's prefix from there, through the block table and the ancestor slots. Its logits are a hash of that prefix: one
wrong block, slot, position or copy gives other tokens, and a hole in the context fails an assertion.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import torch

from decodex.config import EngineConfig
from decodex.engine import Engine
from decodex.grammar.check import IndependentCheck
from decodex.kernels.rng import derive_seed, seed_bits
from decodex.kernels.sampling import SamplingRows, sample_rows
from decodex.kv_cache import KVCache, LayerKV
from decodex.models.interface import ForwardBatch, ForwardOutput
from decodex.params import SamplingParams
from decodex.spec.draft import Draft
from decodex.verdicts import Verdicts

VOCAB = 12
EOS = 0
SHARED_CHECK = IndependentCheck()


def hash_logits(prefix: Sequence[int], vocab_size: int) -> np.ndarray:
    """Logits in [-4, 4) that depend on every token of the prefix and nothing else."""
    digest = hashlib.blake2b(np.asarray(prefix, dtype=np.int64).tobytes(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "little")).uniform(-4, 4, vocab_size).astype(np.float32)


class FakeModel:
    """A causal LM whose state is only in the KV cache. `vocab_size` may be wider than the tokenizer's."""

    name = "fake"
    hidden_size = 4
    num_layers = 1
    kv_spec = (LayerKV(1, 1, 1),)
    replayable = True
    weight_nbytes = 0
    weights_digest = "fake"

    def __init__(self, vocab_size: int = VOCAB, max_position: int = 512, logits_of: Callable | None = None) -> None:
        self.vocab_size = vocab_size
        self.max_position = max_position
        self.num_forwards = 0
        self.num_tokens = 0
        self._logits_of = logits_of or (lambda prefix: hash_logits(prefix, vocab_size))

    @torch.inference_mode()  # as real models: what comes out can only be changed in place inside the mode
    def forward(self, batch: ForwardBatch, kv: KVCache, taps=(), wants_hidden=False) -> ForwardOutput:
        self.num_forwards += 1
        self.num_tokens += len(batch.token_ids)
        assert len(set(batch.slot_mapping.tolist())) == len(batch.slot_mapping), "two tokens write one slot"
        kv.k[0][batch.slot_mapping, 0, 0] = batch.token_ids.float()
        kv.v[0][batch.slot_mapping, 0, 0] = batch.positions.float()
        rows = [self._logits_of(self._prefix(batch, kv, row)) for row in batch.logits_rows.tolist()]
        logits = np.array(rows, dtype=np.float32).reshape(len(rows), self.vocab_size)
        return ForwardOutput(torch.from_numpy(logits))

    def _prefix(self, batch: ForwardBatch, kv: KVCache, row: int) -> list[int]:
        rows, size = batch.rows, batch.rows.block_size
        length = int(rows.ctx_lens[row])
        table = rows.block_tables[int(rows.row_slot[row])].tolist()
        slots = [table[p // size] * size + p % size for p in range(length)]
        slots += rows.anc_slots[int(rows.anc_cu[row]) : int(rows.anc_cu[row + 1])].tolist()
        positions = kv.v[0][slots, 0, 0].int().tolist()
        assert positions == list(range(len(slots))), f"row {row} reads positions {positions}"
        assert positions[-1] == int(batch.positions[row])
        return kv.k[0][slots, 0, 0].int().tolist()


class FakeTokenizer:
    """Token i is the letter chr(ord('a') + i); EOS is special. Text is joined letters."""

    special_ids = frozenset({EOS})
    eos_token_ids = frozenset({EOS})
    is_exact_in_bytes = False

    def __init__(self, vocab_size: int = VOCAB) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(c) - ord("a") for c in text]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(ord("a") + i) for i in ids if not (skip_special_tokens and i == EOS))

    def id_to_token(self, token_id: int) -> str | None:
        return chr(ord("a") + token_id)

    def token_bytes(self) -> list[bytes]:
        return [chr(ord("a") + i).encode() for i in range(self.vocab_size)]

    def apply_chat_template(self, messages: Sequence[dict], *_: object, **__: object) -> list[int]:
        return self.encode(self.render_chat(messages))

    def render_chat(self, messages: Sequence[dict], *_: object, **__: object) -> str:
        return "".join(m["content"] for m in messages)

    def chat_template(self, with_tools: bool = False) -> str | None:
        return "{% for m in messages %}{{ m.content }}{% endfor %}"

    def template_variables(self, with_tools: bool = False) -> frozenset[str]:
        return frozenset({"messages"})


class ByteTokenizer(FakeTokenizer):
    """Token i < 256 is the byte i; 256 is EOS."""

    special_ids = frozenset({256})
    eos_token_ids = frozenset({256})
    is_exact_in_bytes = True
    num_stripped = 0

    def __init__(self) -> None:
        super().__init__(257)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")

    def bytes_of(self, token_id: int, skip_special_tokens: bool = True) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def token_bytes(self) -> list[bytes]:
        return [*(bytes([i]) for i in range(256)), b""]


class TextTokenizer(FakeTokenizer):
    """Token i is texts[i], longest match first; token 0 is EOS and special."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__(len(texts))
        self.texts = list(texts)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids = []
        while text:
            fitting = [i for i, known in enumerate(self.texts) if text.startswith(known)]
            ids.append(max(fitting, key=lambda i: len(self.texts[i])))
            text = text[len(self.texts[ids[-1]]) :]
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(self.texts[i] for i in ids if not (skip_special_tokens and i == EOS))

    def id_to_token(self, token_id: int) -> str | None:
        return self.texts[token_id]

    def token_bytes(self) -> list[bytes]:
        return [text.encode() for text in self.texts]


class Guesser:
    """What a proposer of the tests need not say itself."""

    name = "test"

    def forget(self, key: int) -> None:
        pass


class RandomProposer(Guesser):
    """Drafts trees of random tokens, some of them the ones that a model with `logits_of` would emit greedily."""

    def __init__(
        self,
        seed: int,
        vocab_size: int = VOCAB,
        max_nodes: int = 6,
        chain: bool = False,
        logits_of: Callable | None = None,
    ) -> None:
        self._logits_of = logits_of or (lambda prefix: hash_logits(prefix, vocab_size))
        self._rng = np.random.default_rng(seed)
        self._vocab_size = vocab_size
        self._max_nodes = max_nodes
        self._chain = chain

    def propose(self, views: Sequence) -> list[Draft | None]:
        return [self._draft(view) for view in views]

    def _draft(self, view) -> Draft | None:
        count = int(self._rng.integers(0, self._max_nodes + 1))
        tokens: list[int] = []
        parents: list[int] = []
        for node in range(count):
            parents.append(node - 1 if self._chain else int(self._rng.integers(-1, node)))
            prefix = list(view.token_ids)
            path, at = [], parents[-1]
            while at >= 0:
                path.append(tokens[at])
                at = parents[at]
            prefix += reversed(path)
            good = int(self._logits_of(prefix).argmax())
            tokens.append(good if self._rng.random() < 0.7 else int(self._rng.integers(0, self._vocab_size)))
        return Draft(tuple(tokens), tuple(parents)) if count else None


def make_engine(
    *, model: FakeModel | None = None, tokenizer: FakeTokenizer | None = None, proposer=None, drafter=None, **options
) -> Engine:
    """An engine over the fake model; `num_blocks` sets the pool size exactly. `check_outputs` is on, by one process for
    all engines; True is a process of its own."""
    model = model or FakeModel()
    num_blocks = options.pop("num_blocks", 64)
    block_size = options.setdefault("block_size", 4)
    slot_values = 2 + sum(heads * (k + v) for heads, k, v in (drafter.kv_layers if drafter is not None else ()))
    options["kv_cache_gib"] = num_blocks * block_size * 4 * slot_values / 2**30
    own_check = options.setdefault("check_outputs", None)
    options["check_outputs"] = bool(own_check)
    engine = Engine(EngineConfig(**options), model, tokenizer or FakeTokenizer(), proposer=proposer, drafter=drafter)
    assert engine.config.num_blocks == num_blocks
    if own_check is None:
        engine.verdicts = Verdicts(SHARED_CHECK)
    return engine


def expected_tokens(
    prompt: Sequence[int], params: SamplingParams, choice: int = 0, logits_of: Callable | None = None
) -> list[int]:
    """What the engine must emit, by a loop over one growing prefix: no cache, no batch, no draft."""
    logits_of = logits_of or (lambda prefix: hash_logits(prefix, VOCAB))
    prefix = list(prompt)
    seed = derive_seed(params.seed, choice)
    while True:
        logits = torch.from_numpy(logits_of(prefix).copy())[None, :VOCAB]
        output = len(prefix) - len(prompt)
        enders = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
        if output < params.min_tokens and enders:
            logits[0, sorted(enders)] = -torch.inf
        rows = SamplingRows(
            temperature=torch.tensor([float(params.temperature)]),
            seeds=torch.tensor([seed_bits(seed)]),
            positions=torch.tensor([len(prefix)]),
            top_k=torch.tensor([params.top_k or 0], dtype=torch.int32),
            top_p=torch.tensor([params.top_p or 1.0]),
            min_p=torch.tensor([params.min_p or 0.0]),
        )
        token = sample_rows(logits, rows).item()
        prefix.append(token)
        output += 1
        if output == params.max_tokens or (output > params.min_tokens and token in enders):
            return prefix[len(prompt) :]
