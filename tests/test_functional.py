"""The functional API gives what the engine gives, and asks for what it needs."""

from __future__ import annotations

import pytest
import tokenizers
import torch
import transformers
from fakes import TextTokenizer, hash_logits
from feature_oracle import expected, expected_logits, row_parameters

from decodex import functional
from decodex.errors import RequestError
from decodex.kernels.sampling import top_logprobs
from decodex.kernels.sampling import truncate_ as kernel_truncate_
from decodex.params import SamplingParams

TEXTS = ["</s>", "a", "b", "ab", "ba", "c", "bc", "cab", " ", "\n", "<think>", "</think>"]
TOKENIZER = TextTokenizer(TEXTS)
PROMPT = [1, 2, 3, 1]
PARAMS = [
    SamplingParams(seed=1, max_tokens=12, ignore_eos=True, repetition_penalty=1.3, frequency_penalty=0.5, top_p=0.9),
    SamplingParams(seed=2, max_tokens=12, ignore_eos=True, bad_words=["abc", "bb"], dry_multiplier=1.0, min_p=0.05),
    SamplingParams(seed=3, max_tokens=12, ignore_eos=True, xtc_probability=0.5, logit_bias={3: 2.0}, min_tokens=3),
]


def test_a_loop_over_sample_is_the_engine():
    rows = [list(PROMPT) for _ in PARAMS]
    for _ in range(12):
        logits = torch.stack([torch.from_numpy(hash_logits(row, len(TEXTS))) for row in rows])
        before = logits.clone()
        tokens = functional.sample(logits, PARAMS, token_ids=rows, num_prompt_tokens=len(PROMPT), tokenizer=TOKENIZER)
        assert torch.equal(logits, before)
        for row, token in zip(rows, tokens.tolist(), strict=True):
            row.append(token)
    for row, params in zip(rows, PARAMS, strict=True):
        assert row[len(PROMPT) :] == expected(PROMPT, params, TOKENIZER).token_ids


def test_process_is_steps_2_to_4():
    output = [5, 1, 2]
    raw = hash_logits([*PROMPT, *output], len(TEXTS))
    logits = torch.from_numpy(raw.copy())[None]
    history = [[*PROMPT, *output]]
    result = functional.process_(logits, PARAMS[1], token_ids=history, num_prompt_tokens=4, tokenizer=TOKENIZER)
    assert result is logits
    assert torch.allclose(logits, expected_logits(raw, PROMPT, output, PARAMS[1], TOKENIZER))


def test_apply_penalties():
    logits = torch.randn(2, 12, generator=torch.Generator().manual_seed(1))
    expected_rows = logits.clone()
    for row, (prompt, output) in enumerate([([1, 2], [2, 2, 3]), ([], [])]):
        for token in {*prompt, *output}:
            value = expected_rows[row, token]
            expected_rows[row, token] = value / 2 if value > 0 else value * 2
        for token in set(output):
            expected_rows[row, token] -= 0.5 * output.count(token) + 0.25
    out = functional.apply_penalties_(
        logits, [[1, 2], []], [[2, 2, 3], []], repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25
    )
    assert out is logits
    assert torch.allclose(logits, expected_rows)


def test_truncate_and_gumbel_argmax():
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(2))
    params = SamplingParams(temperature=0.7, top_k=5, top_p=0.8, seed=9)
    kept = functional.truncate_(logits.clone(), params, positions=[4, 5, 6])
    for row, position in enumerate((4, 5, 6)):
        alone = kernel_truncate_(logits[row : row + 1].clone(), row_parameters(params, 9, position))
        assert torch.equal(kept[row], alone[0])
    noisy = functional.gumbel_argmax(kept, [9, 9, 9], [4, 5, 6])
    assert noisy.tolist() == functional.sample(logits, params, positions=[4, 5, 6]).tolist()


def test_bitmask():
    logits = torch.zeros(1, 40)
    functional.apply_token_bitmask_(logits, torch.tensor([[5, 1]], dtype=torch.int32))
    assert torch.isfinite(logits[0]).nonzero().flatten().tolist() == [0, 2, 32]


@pytest.mark.parametrize(
    ("params", "options", "field"),
    [
        ({"repetition_penalty": 2.0}, {}, "repetition_penalty"),
        ({"bad_words": ["a"]}, {}, "bad_words"),
        ({"frequency_penalty": 1.0}, {"token_ids": [[1]]}, "num_prompt_tokens"),
        ({"bad_words": ["a"]}, {"token_ids": [[1]], "num_prompt_tokens": 1}, "tokenizer"),
        ({"min_tokens": 1}, {"token_ids": [[1]], "num_prompt_tokens": 1}, "tokenizer"),
        ({"dry_multiplier": 1.0}, {"token_ids": [[1]]}, "tokenizer"),
        ({"bad_words": ["a"]}, {"token_ids": [[1]], "num_prompt_tokens": 1, "tokenizer": "x"}, "tokenizer"),
        ({"frequency_penalty": 1.0}, {"token_ids": [[1]], "num_prompt_tokens": 2}, "num_prompt_tokens"),
        ({"frequency_penalty": 1.0}, {"token_ids": [[1]], "num_prompt_tokens": [-1]}, "num_prompt_tokens"),
        ({"frequency_penalty": 1.0}, {"token_ids": [[1]], "num_prompt_tokens": [1, 1]}, "num_prompt_tokens"),
        ({}, {"token_ids": [[1.5]]}, "token_ids[0]"),
        ({}, {"token_ids": [[12]]}, "token_ids[0]"),
        ({}, {"token_ids": [2**40]}, "token_ids[0]"),
        ({}, {"token_ids": "a"}, "token_ids"),
        ({}, {"positions": [1.7]}, "positions"),
        ({}, {"positions": [-1]}, "positions"),
        ({}, {"positions": torch.tensor([2**32 + 1])}, "positions"),
        ({"structured_outputs": {"regex": "a"}}, {}, "structured_outputs"),
        ({"logit_bias": {12: 1}}, {}, "logit_bias[12]"),
        ({}, {"token_ids": [[1], [2]]}, "token_ids"),
    ],
)
def test_what_is_missing_is_named(params, options, field):
    with pytest.raises(RequestError) as caught:
        functional.sample(torch.zeros(1, 12), SamplingParams(**params), **options)
    assert caught.value.field == field
    with pytest.raises(RequestError, match="params"):
        functional.sample(torch.zeros(2, 12), [SamplingParams()])


def test_half_precision_rows_and_a_custom_processor():
    def only_seven(token_ids, logits):
        logits[torch.arange(len(logits)) != 7] = -torch.inf

    params = SamplingParams(logits_processors=[only_seven])
    assert functional.sample(torch.zeros(2, 12).bfloat16(), params, token_ids=[[1], [2]]).tolist() == [7, 7]


def test_the_defaults_of_a_script_change_nothing():
    """Code that runs models often sets torch's default device and dtype."""
    logits = torch.randn(3, 200, dtype=torch.float32, generator=torch.Generator().manual_seed(3))
    params = SamplingParams(
        temperature=1.1, top_p=0.9, min_p=0.01, typical_p=0.95, repetition_penalty=1.2, logit_bias={3: 1.0}, seed=5
    )
    history = [[1, 2, 3], [4], [5, 5]]

    def results():
        return [
            functional.sample(logits, params, token_ids=history, num_prompt_tokens=1),
            functional.process_(logits.clone(), params, token_ids=history, num_prompt_tokens=1),
            functional.truncate_(logits.clone(), params),
            functional.gumbel_argmax(logits, [1, 2, 3], [0, 1, 2]),
            functional.apply_penalties_(logits.clone(), history, history, frequency_penalty=0.5),
            *top_logprobs(logits, 4, torch.zeros(3, dtype=torch.int64, device="cpu")),
        ]

    expected = results()
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        found = results()
        assert torch.get_default_dtype() == torch.float64
        assert torch.get_default_device().type == "meta"
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.device.type == "cpu"
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "logits", [torch.zeros(12), torch.zeros(2, 0), torch.zeros(2, 12).long(), [[0.0]], torch.zeros(2, 12).to_sparse()]
)
def test_what_are_no_logits(logits):
    calls = [
        lambda: functional.sample(logits, SamplingParams()),
        lambda: functional.process_(logits, SamplingParams()),
        lambda: functional.truncate_(logits, SamplingParams()),
        lambda: functional.gumbel_argmax(logits, [1, 2], [1, 2]),
    ]
    for call in calls:
        with pytest.raises(RequestError, match=r"^logits: got"):
            call()


def test_what_changes_in_place_has_rows_of_its_own():
    shared = torch.zeros(1, 6).expand(3, 6)
    with pytest.raises(RequestError, match="overlap"):
        functional.process_(shared, SamplingParams(logit_bias={1: 2.0}))
    tokens = functional.sample(shared, SamplingParams(logit_bias={1: 50.0}, seed=1))
    assert tokens.tolist() == [1, 1, 1]
    assert not shared.any()


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1, 1.5])
def test_seeds_have_a_range(seed):
    with pytest.raises(RequestError, match="seeds"):
        functional.gumbel_argmax(torch.zeros(1, 6), [seed], [0])


def test_rows_without_a_seed_are_drawn_anew():
    logits = torch.zeros(8, 5000)
    first, second = (functional.sample(logits, SamplingParams()).tolist() for _ in range(2))
    assert len(set(first)) > 1
    assert first != second
    again = [functional.sample(logits, SamplingParams(seed=3)).tolist() for _ in range(2)]
    assert again[0] == again[1]
    assert len(set(again[0])) == 1


def test_a_processor_that_remembers_is_the_callers():
    class Counter:
        count = 0

        def apply(self, logits, rows):
            self.count += 1
            logits[:, self.count] = 100.0

    params = SamplingParams(temperature=0.0, logits_processors=[Counter()])
    found = [functional.sample(torch.zeros(1, 9), params, token_ids=[[1]]).item() for _ in range(3)]
    assert found == [1, 2, 3]


def test_a_tokenizer_of_transformers(tmp_path):
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"</s>": 0, "a": 1, "b": 2}, unk_token="</s>"))
    backend.decoder = tokenizers.decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    params = SamplingParams(temperature=0.0, bad_words=["ba"], min_tokens=5)
    logits = torch.tensor([[9.0, 5.0, 1.0]])
    sampled = functional.sample(logits, params, token_ids=[[1, 2]], num_prompt_tokens=1, tokenizer=fast)
    assert sampled.tolist() == [2]  # the end comes too early, and `a` would complete the word
