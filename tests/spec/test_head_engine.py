"""Heads and draft models from checkpoint to engine: nothing changes, and the target itself drafts without a miss."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from head_fakes import CONFIG, EMBED, HEAD, LAYOUTS, NUM_LAYERS, H, V, layer_shapes, tensors_of, write
from safetensors.torch import save_file

from decodex import EngineConfig, ModelError, SamplingParams
from decodex.engine import Engine
from decodex.heads import head_agreement, load_drafter
from decodex.kernels.backend import cpu_library
from decodex.speculative_config import HeadQuantization

DEVICE = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")


def save_tokenizer(folder: Path, words: list[str]) -> None:
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[1])
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.add_special_tokens([words[0]])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": words[0]}))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of the size that the heads' layouts are for."""
    folder = tmp_path_factory.mktemp("target")
    shapes: dict[str, tuple[int, ...]] = {"model.norm.weight": (H,)}
    for index in range(NUM_LAYERS):
        prefix = f"model.layers.{index}."
        shapes |= {**layer_shapes(prefix), f"{prefix}input_layernorm.weight": (H,)}
    tensors = {name: tensor + (tensor.dim() == 1) for name, tensor in tensors_of(shapes).items()}
    tensors |= {"model.embed_tokens.weight": EMBED.clone(), "lm_head.weight": HEAD.clone()}
    config = {**CONFIG, "num_hidden_layers": NUM_LAYERS, "max_position_embeddings": 128}
    (folder / "config.json").write_text(
        json.dumps({**config, "architectures": ["LlamaForCausalLM"], "model_type": "llama"})
    )
    save_file(tensors, folder / "model.safetensors")
    save_tokenizer(folder, [f"t{i}" for i in range(V)])
    return folder


def load(target: Path, max_num_batched_tokens: int = 16, **speculative: object) -> Engine:
    config = {**speculative, "control": False} if speculative else False
    return Engine.load(
        EngineConfig(
            model=str(target),
            speculative_config=config,
            kv_cache_gib=0.01,
            max_num_seqs=4,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=4,
            check_outputs=False,
        )
    )


def outputs(engine: Engine) -> tuple[list[list[int]], list]:
    """Of five requests, the last of which begins as the first does."""
    prompts = [[3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [7], [9, 8, 7, 6, 5], [2, 3] * 9]
    prompts.append([*prompts[0], 20, 21])
    requests = [
        engine.admission.admit(
            prompt, SamplingParams(temperature=0.8 * (i % 2), seed=i, max_tokens=20, ignore_eos=True)
        )
        for i, prompt in enumerate(prompts)
    ]
    for request in requests:
        engine.add(request)
    while engine.has_work:
        engine.step()
    done = [engine.output_of(request) for request in requests]
    return [output.outputs[0].token_ids for output in done], [request.metrics.speculation for request in requests]


@pytest.fixture(scope="module")
def expected(target: Path) -> list[list[int]]:
    return outputs(load(target))[0]


TREES = {"chain": None, "static": [2, 2, 1], "grown": {"num_children": 3, "num_expanded": 2, "max_nodes": 8}}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize(
    "layout", ["eagle3-speculators", "eagle3-targets-head", "eagle-two-layers", "mtp-qwen3-next", "mtp-mimo"]
)
def test_heads_change_no_token(layout: str, tree: str, target: Path, expected: list[list[int]], tmp_path: Path) -> None:
    checkpoint = LAYOUTS[layout]
    write(tmp_path, checkpoint.config, checkpoint.tensors, checkpoint.is_bin)
    method = layout.split("-")[0]
    engine = load(target, method=method, model=str(tmp_path), tree=TREES[tree], num_speculative_tokens=4)
    tokens, metrics = outputs(engine)
    assert tokens == expected
    assert all(m is not None and m.num_drafted > m.num_steps for m in metrics)
    assert set(metrics[0].by_proposer) == {method}


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "mtp-mimo-raw" and "-normed" not in name])
def test_heads_see_what_transformers_computes(layout: str, target: Path, tmp_path: Path) -> None:
    """The drafts' logits, from checkpoints alone: taps and hidden states are transformers', the head is plain torch."""
    checkpoint = LAYOUTS[layout]
    write(tmp_path, checkpoint.config, checkpoint.tensors, checkpoint.is_bin)
    engine = load(target, method=layout.split("-")[0], model=str(tmp_path), tree=[2, 1, 1], quantization="none")
    chooser, seen = engine.speculation._chooser, []
    choose = chooser.choose

    def remember(logits, views, paths, width, token_map):
        seen.extend((list(chooser.sequences[v].token_ids), p, row.clone()) for v, p, row in zip(views, paths, logits))
        return choose(logits, views, paths, width, token_map)

    chooser.choose = remember
    outputs(engine)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32, attn_implementation="eager")
    taps = engine.speculation._with_weights.taps
    assert len(seen) > 100
    for token_ids, path, logits in seen[::7]:
        with torch.no_grad():
            out = theirs.model(torch.tensor([token_ids[:-1]]), output_hidden_states=True, use_cache=False)
        states = torch.stack([out.hidden_states[tap + 1][0] for tap in taps], 1) if taps else out.last_hidden_state[0]
        expected = checkpoint.oracle.logits(token_ids, states, path)
        torch.testing.assert_close(logits, expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("tree", TREES)
def test_the_target_as_its_own_draft_model_is_always_right(tree: str, target: Path, expected: list[list[int]]) -> None:
    engine = load(target, 99, method="draft_model", model=str(target), tree=TREES[tree], num_speculative_tokens=4)
    tokens, metrics = outputs(engine)
    assert tokens == expected
    depth = 3 if tree == "static" else 4
    for m in metrics:
        if tree == "chain":
            assert m.num_accepted == m.num_drafted
        if tree != "grown":  # a grown one may prefer other paths
            assert m.num_steps <= 1 + -(-19 // (depth + 1))


@pytest.mark.parametrize("verification", ["rejection", "block"])
def test_a_ratio_test_accepts_what_was_drawn_from_the_targets_own_law(verification: str, target: Path) -> None:
    config = {"method": "draft_model", "model": str(target), "verification": verification, "num_speculative_tokens": 4}
    _, metrics = outputs(load(target, 99, **config))
    assert all(m.num_accepted == m.num_drafted > 0 for m in metrics)


def test_a_head_is_compared_with_its_target(target: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, tokenizer = (engine := load(target)).model, engine.tokenizer
    checkpoint = LAYOUTS["eagle3-targets-head"]
    write(tmp_path, checkpoint.config, checkpoint.tensors)
    with caplog.at_level("INFO", logger="decodex.heads"):
        proposer = load_drafter("eagle3", str(tmp_path), model, tokenizer, DEVICE)
    assert "top token as the target's at" in caplog.text
    ids = list(range(24)) * 2
    agreed, asked = head_agreement(proposer._head, model, ids, DEVICE)
    assert 0 <= agreed < asked == 47


@pytest.mark.parametrize("layout", ["eagle-two-layers", "eagle3-targets-head", "mtp-mimo"])
def test_a_head_in_int8_guesses_much_the_same(layout: str, target: Path, tmp_path: Path) -> None:
    model, tokenizer = (engine := load(target)).model, engine.tokenizer
    checkpoint, ids = LAYOUTS[layout], list(range(24)) * 2
    write(tmp_path, checkpoint.config, checkpoint.tensors, checkpoint.is_bin)

    def logits_of(quantization: HeadQuantization) -> torch.Tensor:
        method = layout.split("-")[0]
        head = load_drafter(method, str(tmp_path), model, tokenizer, DEVICE, quantization=quantization)._head
        seen, forward = [], head.forward
        head.forward = lambda *args: seen.append(forward(*args)) or seen[0]  # type: ignore[method-assign]
        head_agreement(head, model, ids, DEVICE)
        return seen[0][1]

    exact, rounded = logits_of("none"), logits_of("int8")
    error = (exact - rounded).std() / exact.std()
    assert 0 < error < 0.05
    assert torch.equal(logits_of("auto"), exact if cpu_library() is None else rounded)


def test_what_does_not_fit_is_a_model_error(target: Path, tmp_path: Path) -> None:
    model, tokenizer = (engine := load(target)).model, engine.tokenizer
    with pytest.raises(ModelError, match="expected the folder of a head or a Hugging Face id"):
        load_drafter("eagle3", str(tmp_path / "nowhere"), model, tokenizer, DEVICE)
    with pytest.raises(ModelError, match=r"config.json: file is missing"):
        load_drafter("eagle3", str(tmp_path), model, tokenizer, DEVICE)
    checkpoint = LAYOUTS["eagle"]
    write(tmp_path, checkpoint.config, checkpoint.tensors)
    with pytest.raises(ModelError, match=r"'fc.weight' has shape \[16, 32\]"):
        load_drafter("eagle3", str(tmp_path), model, tokenizer, DEVICE)
    with pytest.raises(ModelError, match="no multi-token-prediction module"):
        load_drafter("mtp", str(tmp_path), model, tokenizer, DEVICE)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([f"t{i}" for i in range(V + 1)], r"25 tokens \(1 special\), the target's has 24"),
        ([*(f"t{i}" for i in range(V - 1)), "other"], "token 23 is 'other', the target's is 't23'"),
    ],
)
def test_a_draft_model_with_another_vocabulary_is_refused(
    words: list[str], message: str, target: Path, tmp_path: Path
) -> None:
    engine = load(target)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((target / name).read_bytes())
    save_tokenizer(tmp_path, words)
    with pytest.raises(ModelError, match=message):
        load_drafter("draft_model", str(tmp_path), engine.model, engine.tokenizer, DEVICE)
