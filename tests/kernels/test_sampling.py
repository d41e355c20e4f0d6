"""sample_rows: both bodies token for token, the kept sets against a plain Python oracle, the distribution."""

import math

import pytest
import torch

from decodex.kernels import backend
from decodex.kernels.reference import rng as reference_rng
from decodex.kernels.sampling import RareRows, SamplingRows, sample_rows, sample_scored, top_logprobs

NATIVE = pytest.param("native", marks=pytest.mark.skipif(backend.cpu_library() is None, reason="no CPU library"))
both_bodies = pytest.mark.parametrize("body", ["reference", NATIVE])


def make_rows(num_rows, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, first_seed=0):
    return SamplingRows(
        temperature=torch.full((num_rows,), float(temperature)),
        seeds=torch.arange(first_seed, first_seed + num_rows),
        positions=torch.arange(num_rows) % 1000,
        top_k=torch.full((num_rows,), top_k, dtype=torch.int32),
        top_p=torch.full((num_rows,), float(top_p)),
        min_p=torch.full((num_rows,), float(min_p)),
    )


def draw(logits, **kw):
    return sample_rows(logits, make_rows(logits.shape[0], **kw))


def make_logits(kind, num_rows, vocab_size, generator):
    logits = torch.randn(num_rows, vocab_size, generator=generator)
    if kind == "peaked":
        return logits * 6
    if kind == "ties":
        return (logits * 2).round()
    if kind == "constant":
        return torch.full_like(logits, 3.5)
    if kind == "masked":
        return torch.where(torch.rand(logits.shape, generator=generator) < 0.99, -torch.inf, logits * 4)
    if kind == "huge":
        return logits * 1e37
    if kind == "signed zeros":
        return torch.where(logits > 0, 0.0, -0.0)
    return logits


def random_parameters(num_rows, vocab_size, generator):
    def choose(values, dtype):
        index = torch.randint(len(values), (num_rows,), generator=generator)
        return torch.tensor(values, dtype=dtype)[index]

    return SamplingRows(
        temperature=choose([0.0, 1e-12, 1e-5, 0.7, 1.0, 5.0], torch.float32),
        seeds=torch.randint(-(2**62), 2**62, (num_rows,), generator=generator),
        positions=torch.randint(0, 2**31, (num_rows,), generator=generator),
        top_k=choose([0, -1, 1, 2, 50, vocab_size - 1, vocab_size, vocab_size + 1], torch.int32),
        top_p=choose([1e-9, 0.1, 0.5, 0.9, 1 - 1e-7, 1.0, 1.0], torch.float32),
        min_p=choose([0.0, 0.0, 1e-6, 0.05, 1.0], torch.float32),
    )


@pytest.mark.skipif(backend.cpu_library() is None, reason="no CPU library")
@pytest.mark.parametrize("kind", ["normal", "peaked", "ties", "constant", "masked", "huge", "signed zeros"])
@pytest.mark.parametrize("vocab_size", [1, 5, 64, 65, 1000, 9001])
def test_bodies_draw_the_same_tokens(kind, vocab_size):
    generator = torch.Generator().manual_seed(vocab_size)
    num_rows = 400 if vocab_size < 1000 else 150
    logits = make_logits(kind, num_rows, vocab_size, generator)
    rows = random_parameters(num_rows, vocab_size, generator)
    before = logits.clone()
    with backend.set_backend("native"):
        native = sample_rows(logits, rows)
    with backend.set_backend("reference"):
        expected = sample_rows(logits, rows)
    assert torch.equal(logits, before)
    wrong = (native != expected).nonzero().flatten().tolist()
    assert not wrong, [(row, native[row], expected[row], [p[row].item() for p in rows[:-1]]) for row in wrong[:5]]
    is_empty = (logits == -torch.inf).all(1)
    assert torch.equal(native == -1, is_empty)


def kept_by_definition(logits, temperature, top_k, top_p, min_p):
    """The kept ids of one row in plain Python, from the definitions."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i].item(), i))
    x = {i: (logits[i] - logits.max()) / temperature for i in order}
    kept = [i for i in order if x[i] > -math.inf and (min_p <= 0 or x[i].item() >= math.log(min_p) - 1e-6)]
    if 0 < top_k < len(order):
        kept = kept[:top_k]
    if top_p < 1:
        mass = [int(reference_rng.exp_nonpositive(x[i].view(1)).item() * 2**40) for i in kept]
        total, so_far, count = sum(mass), 0, 0
        for m in mass:
            so_far, count = so_far + m, count + 1
            if so_far >= torch.tensor(top_p, dtype=torch.float32).item() * total:
                break
        kept = kept[:count]
    return kept


@both_bodies
@pytest.mark.parametrize("kind", ["normal", "ties", "masked"])
def test_tokens_are_the_best_noisy_score_of_the_kept_set(body, kind):
    generator = torch.Generator().manual_seed(3)
    logits = make_logits(kind, 60, 130, generator)
    logits[:, 7] = 1.0
    rows = random_parameters(60, 130, generator)
    with backend.set_backend(body):
        tokens = sample_rows(logits, rows).tolist()
    noise = reference_rng.gumbel_noise(rows.seeds, rows.positions, 130, 0)
    for row, token in enumerate(tokens):
        temperature, top_k, top_p, min_p = (p[row].item() for p in (rows.temperature, *rows[3:6]))
        if temperature == 0:
            assert token == logits[row].tolist().index(logits[row].max())
            continue
        kept = kept_by_definition(logits[row], rows.temperature[row], top_k, top_p, min_p)
        score = (logits[row] - logits[row].max()) / rows.temperature[row] + noise[row]
        assert token == max(kept, key=lambda i: (score[i].item(), -i))


@both_bodies
def test_exact_counts_and_ties_to_the_lower_id(body):
    logits = torch.zeros(500, 300)
    logits[:, 200:] = 1.0
    with backend.set_backend(body):
        assert set(draw(logits, top_k=3).tolist()) == {200, 201, 202}
        assert set(draw(logits, top_p=0.02).tolist()) == set(range(200, 204))  # 100e/(100e+200) * 0.02 in steps of e
        assert set(draw(logits, min_p=1.0).tolist()) <= set(range(200, 300))
        assert set(draw(logits, temperature=0).tolist()) == {200}
        assert set(draw(logits, top_p=1e-9).tolist()) == {200}


@both_bodies
def test_bad_rows_are_their_own_error(body):
    logits = torch.randn(6, 100, generator=torch.Generator().manual_seed(0))
    with backend.set_backend(body):
        clean = draw(logits)
        logits[1, 50] = torch.nan
        logits[3, 99] = torch.inf
        logits[4] = -torch.inf
        for kw in ({}, {"temperature": 0}, {"top_k": 5}, {"top_p": 0.5}):
            tokens = draw(logits, **kw)
            assert (tokens == -1).tolist() == [False, True, False, True, True, False]
        tokens = draw(logits)
    assert torch.equal(tokens[[0, 2, 5]], clean[[0, 2, 5]])


@both_bodies
def test_batch_mates_and_strides_change_nothing(body):
    generator = torch.Generator().manual_seed(1)
    wide = torch.randn(32, 2000, generator=generator) * 3
    logits = wide[:, :1777]
    rows = random_parameters(32, 1777, generator)
    with backend.set_backend(body):
        together = sample_rows(logits, rows)
        alone = torch.cat([sample_rows(logits[i : i + 1], rows.select(slice(i, i + 1))) for i in range(32)])
        backwards = sample_rows(logits.flip(0), rows.select(torch.arange(31, -1, -1))).flip(0)
    assert torch.equal(together, alone)
    assert torch.equal(together, backwards)


@both_bodies
@pytest.mark.parametrize(
    "kw", [{}, {"temperature": 0.7}, {"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.1, "temperature": 2.0, "top_k": 6}]
)
def test_distribution(body, kw):
    """Chi-square of 40,000 seeds against the fp64 softmax of the kept set."""
    logits = torch.tensor([1.0, 0.5, -1.0, 2.0, 0.0, 0.5, -3.0, 1.5])
    num = 40_000
    with backend.set_backend(body):
        tokens = draw(logits.expand(num, -1).contiguous(), first_seed=10_000, **kw)
    full = {"temperature": torch.tensor(1.0), "top_k": 0, "top_p": 1.0, "min_p": 0.0} | kw
    kept = kept_by_definition(logits, torch.as_tensor(full.pop("temperature")), *full.values())
    p = torch.softmax(logits.double()[kept] / kw.get("temperature", 1.0), 0)
    counts = torch.bincount(tokens, minlength=8)[kept].double()
    assert counts.sum() == num
    statistic = float(((counts - num * p) ** 2 / (num * p)).sum())
    assert statistic < 3.3 * len(kept) + 12  # about p = 1e-5 for 1 to 7 degrees of freedom


@both_bodies
def test_top_logprobs(body):
    generator = torch.Generator().manual_seed(2)
    logits = (torch.randn(9, 700, generator=generator) * 2).mul(4).round().div(4)
    logits[3, 100:] = -torch.inf
    logits[4] = 0.25
    chosen = torch.arange(9) * 70
    with backend.set_backend(body):
        result = top_logprobs(logits, 6, chosen)
        alone = [top_logprobs(logits[i : i + 1], 6, chosen[i : i + 1]) for i in range(9)]
        assert top_logprobs(logits, 0).values.shape == (9, 0)
        every = top_logprobs(logits, 700)
    exact = torch.log_softmax(logits.double(), 1)
    order = torch.tensor([sorted(range(700), key=lambda i: (-row[i].item(), i)) for row in logits])
    assert torch.equal(result.ids[:, :6], order[:, :6])
    assert torch.equal(every.ids, order)
    assert torch.equal(result.ids[:, 6], chosen)
    torch.testing.assert_close(result.values.double(), exact.gather(1, result.ids), atol=2e-6, rtol=1e-6)
    assert result.ranks.tolist() == [order[i].tolist().index(chosen[i]) + 1 for i in range(9)]
    assert torch.equal(result.values, torch.cat([one.values for one in alone]))


@pytest.mark.skipif(backend.cpu_library() is None, reason="no CPU library")
def test_logprobs_of_both_bodies_are_bit_equal():
    logits = torch.randn(5, 50_000, generator=torch.Generator().manual_seed(4)) * 5
    with backend.set_backend("native"):
        native = top_logprobs(logits, 5)
    with backend.set_backend("reference"):
        assert torch.equal(native.values, top_logprobs(logits, 5).values)


def test_wrong_arguments_are_named():
    logits = torch.zeros(2, 5)
    good = make_rows(2)
    with pytest.raises(ValueError, match="logits: expected fp32"):
        sample_rows(logits.double(), good)
    with pytest.raises(ValueError, match=r"top_k: expected int32 \[2\] on cpu, got int64 \[2\] on cpu"):
        sample_rows(logits, good._replace(top_k=good.top_k.long()))
    with pytest.raises(ValueError, match="n: expected"):
        top_logprobs(logits, 6)


@both_bodies
@pytest.mark.parametrize("kind", ["normal", "peaked", "ties", "masked", "constant"])
@pytest.mark.parametrize("vocab_size", [1, 7, 64, 130, 5000])
def test_columns_with_ids_are_drawn_as_in_the_whole_vocabulary(body, kind, vocab_size):
    """With the noise of their tokens, in the order of their tokens, and with the same log-probabilities."""
    generator = torch.Generator().manual_seed(vocab_size + 1)
    num_rows, num_tokens = 60, 3 * vocab_size + 5
    ids = torch.randperm(num_tokens, generator=generator)[:vocab_size].sort().values
    logits = make_logits(kind, num_rows, vocab_size, generator)
    rows = random_parameters(num_rows, vocab_size, generator)
    whole = torch.full((num_rows, num_tokens), -torch.inf).index_copy_(1, ids, logits)
    with backend.set_backend(body):
        columns, log_probs = sample_scored(logits, rows, ids)
        assert torch.equal(sample_rows(logits, rows, ids), columns)
        tokens = sample_rows(whole, rows)
        expected = top_logprobs(whole, 0, tokens.clamp(min=0)).values[:, 0]
    assert torch.equal(torch.where(columns < 0, -1, ids[columns.clamp(min=0)]), tokens)
    assert torch.equal(log_probs[tokens >= 0], expected[tokens >= 0])
    assert log_probs[tokens < 0].isnan().all()


def test_wrong_ids_are_named():
    logits, rows = torch.zeros(2, 3), make_rows(2)
    with pytest.raises(ValueError, match=r"ids: expected contiguous int64 \[3\]"):
        sample_rows(logits, rows, torch.arange(4))
    zeros = torch.zeros(2)
    rare = RareRows(zeros, zeros, zeros, zeros + 1, zeros, zeros, zeros, zeros, torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="ids: not with rare"):
        sample_rows(logits, rows._replace(rare=rare), torch.arange(3))
