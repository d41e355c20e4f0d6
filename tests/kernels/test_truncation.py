"""Step 7, parameter by parameter: kept sets against float64 definitions and transformers, "off", ties, bad rows."""

import math

import pytest
import torch
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from decodex.kernels import backend
from decodex.kernels.reference import rng as reference_rng
from decodex.kernels.rng import PURPOSE_PROPOSAL, PURPOSE_XTC, gumbel_noise
from decodex.kernels.sampling import RareRows, SamplingRows, argmax, gumbel_argmax, sample_rows, truncate_

NATIVE = pytest.param("native", marks=pytest.mark.skipif(backend.cpu_library() is None, reason="no CPU library"))
both_bodies = pytest.mark.parametrize("body", ["reference", NATIVE])

OFF = {
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_n_sigma": 0.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
}


def make_rows(num_rows, exempt=(), **values):
    """Every row with these parameters; any rare one given (even at its off value) makes the rare fields present."""

    def full(name, off, dtype=torch.float32):
        return torch.full((num_rows,), values.get(name, off), dtype=dtype)

    rare = None
    if exempt or OFF.keys() & values.keys():
        rare = RareRows(*[full(name, off) for name, off in OFF.items()], torch.tensor(exempt, dtype=torch.int64))
    return SamplingRows(
        temperature=full("temperature", 1.0),
        seeds=torch.arange(num_rows) + values.get("first_seed", 0),
        positions=torch.arange(num_rows) % 500,
        top_k=full("top_k", 0, torch.int32),
        top_p=full("top_p", 1.0),
        min_p=full("min_p", 0.0),
        rare=rare,
    )


def kept(logits, body="reference", **values):
    """Ids that truncate_ keeps in each row."""
    with backend.set_backend(body):
        x = truncate_(logits.clone(), make_rows(logits.shape[0], **values))
    return [(row > -torch.inf).nonzero().flatten().tolist() for row in x]


def make_logits(kind, num_rows, vocab_size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_rows, vocab_size, generator=generator)
    if kind == "ties":
        return (logits * 2).round()
    if kind == "masked":
        return torch.where(torch.rand(logits.shape, generator=generator) < 0.9, -torch.inf, logits * 3)
    if kind == "mixed":
        return logits * torch.rand(num_rows, 1, generator=generator) * 8
    return logits * 2


class Oracle:
    """One row in float64 and plain Python, step by step from the definitions."""

    def __init__(self, logits, temperature=1.0):
        self.logits = [float(value) for value in logits]
        self.finite = [i for i, value in enumerate(self.logits) if value > -math.inf]
        self.kept = sorted(self.finite, key=lambda i: (-self.logits[i], i))
        self.temperature = temperature

    def probabilities(self):
        top = max(self.logits[i] for i in self.kept)
        weight = {i: math.exp((self.logits[i] - top) / self.temperature) for i in self.kept}
        total = math.fsum(weight.values())
        return {i: w / total for i, w in weight.items()}

    def entropy(self):
        return -math.fsum(p * math.log(p) for p in self.probabilities().values() if p > 0)

    def prefix(self, order, share):
        p, so_far, kept = self.probabilities(), 0.0, []
        for i in order:
            kept.append(i)
            so_far += p[i]
            if so_far >= share:
                break
        self.keep(kept)

    def keep(self, kept):
        kept = set(kept)
        self.kept = [i for i in self.kept if i in kept]

    def dynatemp(self, spread, exponent):
        if spread > 0 and len(self.finite) > 1:
            low, high = max(0.0, self.temperature - spread), self.temperature + spread
            at_one = Oracle(self.logits)
            self.temperature = low + (high - low) * (at_one.entropy() / math.log(len(self.finite))) ** exponent

    def top_n_sigma(self, n):
        values = [self.logits[i] for i in self.finite]
        mean = math.fsum(values) / len(values)
        sigma = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
        if n > 0:
            self.keep([i for i in self.kept if self.logits[i] >= max(values) - n * sigma])

    def min_p(self, share):
        p = self.probabilities()
        self.keep([i for i in self.kept if p[i] >= share * p[self.kept[0]]])

    def top_k(self, k):
        if k > 0:
            self.keep(self.kept[:k])

    def typical_p(self, share):
        if share < 1:
            p, entropy = self.probabilities(), self.entropy()
            self.prefix(sorted(self.kept, key=lambda i: (abs(-math.log(p[i]) - entropy), i)), share)

    def epsilon_cutoff(self, epsilon):
        p = self.probabilities()
        self.keep([i for i in self.kept if p[i] >= epsilon or i == self.kept[0]])

    def eta_cutoff(self, eta):
        if eta > 0:
            self.epsilon_cutoff(min(eta, math.sqrt(eta) * math.exp(-self.entropy())))

    def top_p(self, share):
        if share < 1:
            self.prefix(self.kept, share)

    def xtc(self, probability, threshold, exempt, coin):
        p = self.probabilities()
        counted = [i for i in self.kept if p[i] >= threshold and i not in exempt]
        if coin < probability and len(counted) > 1:
            self.keep(set(self.kept) - set(counted[:-1]))


def coins(rows):
    return reference_rng.uniform(rows.seeds, rows.positions, PURPOSE_XTC).tolist()


CASES = [
    {"top_n_sigma": 1.0},
    {"top_n_sigma": 2.5, "temperature": 0.3},
    {"typical_p": 0.9},
    {"typical_p": 0.2, "temperature": 1.7},
    {"epsilon_cutoff": 0.02},
    {"epsilon_cutoff": 0.9},
    {"eta_cutoff": 0.1},
    {"eta_cutoff": 0.004, "temperature": 2.0},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"xtc_probability": 1.0, "xtc_threshold": 0.0},
    {"dynatemp_range": 0.5, "min_p": 0.05},
    {"dynatemp_range": 1.5, "dynatemp_exponent": 2.0, "temperature": 1.0, "top_p": 0.8},
    {"top_k": 40, "typical_p": 0.8, "top_p": 0.9, "xtc_probability": 0.7, "xtc_threshold": 0.02},
    {"top_n_sigma": 2.0, "min_p": 0.01, "top_k": 60, "epsilon_cutoff": 0.003, "eta_cutoff": 0.01, "top_p": 0.95},
]


@both_bodies
@pytest.mark.parametrize("values", CASES, ids=lambda values: " ".join(f"{k}={v}" for k, v in values.items()))
def test_kept_sets_are_those_of_the_definitions(body, values):
    """Random float64 logits never lie within 1e-6 of a border here, so the sets must agree exactly."""
    logits = torch.cat([make_logits(kind, 25, 157, seed) for seed, kind in enumerate(["normal", "mixed", "masked"])])
    exempt = [3, 77]
    rows = make_rows(75, exempt, **values)
    results = kept(logits, body, exempt=exempt, **values)
    coin = coins(rows)
    for row in range(75):
        oracle = Oracle(logits[row], values.get("temperature", 1.0))
        oracle.dynatemp(values.get("dynatemp_range", 0.0), values.get("dynatemp_exponent", 1.0))
        oracle.top_n_sigma(values.get("top_n_sigma", 0.0))
        oracle.min_p(values.get("min_p", 0.0))
        oracle.top_k(values.get("top_k", 0))
        oracle.typical_p(values.get("typical_p", 1.0))
        oracle.epsilon_cutoff(values.get("epsilon_cutoff", 0.0))
        oracle.eta_cutoff(values.get("eta_cutoff", 0.0))
        oracle.top_p(values.get("top_p", 1.0))
        oracle.xtc(values.get("xtc_probability", 0.0), values.get("xtc_threshold", 0.1), exempt, coin[row])
        assert results[row] == sorted(oracle.kept), row
        assert results[row]


@both_bodies
@pytest.mark.parametrize(
    ("warper", "values"),
    [
        (TopKLogitsWarper(7), {"top_k": 7}),
        (TopPLogitsWarper(0.8), {"top_p": 0.8}),
        (MinPLogitsWarper(0.07), {"min_p": 0.07}),
        (TypicalLogitsWarper(0.7), {"typical_p": 0.7}),
        (EpsilonLogitsWarper(0.01), {"epsilon_cutoff": 0.01}),
        (EtaLogitsWarper(0.05), {"eta_cutoff": 0.05}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, dict) else "",
)
def test_kept_sets_are_those_of_transformers(body, warper, values):
    logits = torch.cat([make_logits("normal", 30, 300, 5), make_logits("mixed", 30, 300, 6)])
    expected = [(row > -torch.inf).nonzero().flatten().tolist() for row in warper(None, logits.clone())]
    assert kept(logits, body, **values) == expected


@both_bodies
def test_values_are_those_of_processed_logprobs(body):
    """(logit - max) / T of the kept ones; T = 0 one-hot; dynamic temperature by llama.cpp's formula in float64."""
    logits = make_logits("mixed", 20, 90, 1)
    gap = (logits - logits.amax(1, keepdim=True)).double()
    with backend.set_backend(body):
        x = truncate_(logits.clone(), make_rows(20, temperature=0.7, top_k=5))
        greedy = truncate_(logits.clone(), make_rows(20, temperature=0.0, top_k=5))
        dynamic = truncate_(logits.clone(), make_rows(20, temperature=0.9, dynatemp_range=0.6, dynatemp_exponent=1.5))
    is_kept = x > -torch.inf
    assert is_kept.sum(1).tolist() == [5] * 20
    torch.testing.assert_close(x[is_kept].double(), (gap / 0.7)[is_kept])
    assert (greedy > -torch.inf).sum(1).tolist() == [1] * 20
    assert torch.equal(greedy.argmax(1), logits.argmax(1))
    assert greedy.amax(1).tolist() == [0.0] * 20
    for row in range(20):
        oracle = Oracle(logits[row], 0.9)
        oracle.dynatemp(0.6, 1.5)
        torch.testing.assert_close(dynamic[row].double(), gap[row] / oracle.temperature, rtol=1e-5, atol=1e-6)


@both_bodies
def test_dynamic_temperature_leaves_greedy_and_single_tokens_alone(body):
    logits = torch.full((3, 50), -torch.inf)
    logits[:, 7] = 2.0
    logits[1:, 9] = 2.0
    with backend.set_backend(body):
        for temperature in (0.0, 0.5):
            tokens = sample_rows(logits, make_rows(3, temperature=temperature, dynatemp_range=0.5))
            assert tokens[0] == 7
            assert set(tokens.tolist()) <= {7, 9}
        greedy = sample_rows(logits, make_rows(3, temperature=0.0, dynatemp_range=2.0))
    assert greedy.tolist() == [7, 7, 7]


@both_bodies
@pytest.mark.parametrize(
    ("name", "spellings"),
    [
        ("top_k", [0, -1, 200, 10**6]),
        ("top_p", [1.0, 1.5]),
        ("min_p", [0.0, -1.0]),
        ("dynatemp_range", [0.0, -1.0]),
        ("top_n_sigma", [0.0, -1.0]),
        ("typical_p", [1.0, 2.0]),
        ("epsilon_cutoff", [0.0, -1.0]),
        ("eta_cutoff", [0.0, -1.0]),
        ("xtc_probability", [0.0, -1.0]),
        ("xtc_threshold", [0.01]),
    ],
)
def test_off_in_every_spelling_is_absent(body, name, spellings):
    logits = make_logits("ties", 40, 200)
    for others in ({}, {"top_p": 0.7}, {"top_k": 9}, {"typical_p": 0.6}):
        if name in others:
            continue
        with backend.set_backend(body):
            absent = truncate_(logits.clone(), make_rows(40, **others))
            tokens = sample_rows(logits, make_rows(40, **others))
            for value in spellings:
                rows = make_rows(40, **others, **{name: value})
                assert torch.equal(truncate_(logits.clone(), rows), absent), value
                assert torch.equal(sample_rows(logits, rows), tokens), value


@both_bodies
def test_ties_go_to_the_lower_id(body):
    flat = torch.zeros(1, 60)
    flat[0, 50:] = 1.0
    assert kept(flat, body, top_k=3) == [[50, 51, 52]]
    assert kept(flat, body, top_k=12) == [[0, 1, *range(50, 60)]]
    assert kept(torch.zeros(1, 60), body, typical_p=0.09) == [list(range(6))]
    assert kept(torch.zeros(1, 60), body, epsilon_cutoff=0.5) == [[0]]
    assert kept(torch.zeros(1, 60), body, xtc_probability=1.0, xtc_threshold=0.01) == [[59]]
    assert kept(torch.zeros(1, 60), body, xtc_probability=1.0, xtc_threshold=0.01, exempt=[59, 4]) == [[4, 58, 59]]
    assert kept(torch.zeros(1, 60), body, top_n_sigma=0.5) == [list(range(60))]


@both_bodies
def test_xtc_tosses_its_own_coin(body):
    """The share of rows that lose their best tokens is the probability, and the coin is not the sampling noise."""
    logits = torch.tensor([2.0, 1.9, 0.0, -1.0]).repeat(4000, 1)
    sets = kept(logits, body, xtc_probability=0.3, xtc_threshold=0.2)
    assert {tuple(one) for one in sets} == {(0, 1, 2, 3), (1, 2, 3)}
    assert abs(sum(len(one) == 3 for one in sets) / 4000 - 0.3) < 0.03
    expected = [coin < 0.3 for coin in coins(make_rows(4000))]
    assert [len(one) == 3 for one in sets] == expected


@both_bodies
@pytest.mark.parametrize("values", [{}, {"top_k": 3}, {"top_p": 0.5}, {"typical_p": 0.5}, {"xtc_probability": 1.0}])
def test_bad_rows_are_their_own_error(body, values):
    logits = make_logits("normal", 6, 100)
    with backend.set_backend(body):
        clean = truncate_(logits.clone(), make_rows(6, **values))
        logits[1, 50], logits[3, 99], logits[4] = torch.nan, torch.inf, -torch.inf
        result = truncate_(logits.clone(), make_rows(6, **values))
        tokens = sample_rows(logits, make_rows(6, **values))
        best = argmax(logits)
        noisy = gumbel_argmax(logits, torch.arange(6), torch.arange(6))
    is_bad = [False, True, False, True, True, False]
    assert ((result == -torch.inf).all(1)).tolist() == is_bad
    for ids in (tokens, best, noisy):
        assert (ids == -1).tolist() == is_bad
    assert torch.equal(result[[0, 2, 5]], clean[[0, 2, 5]])


def random_rows(num_rows, vocab_size, generator):
    def choose(values, dtype=torch.float32):
        return torch.tensor(values, dtype=dtype)[torch.randint(len(values), (num_rows,), generator=generator)]

    rare = RareRows(
        dynatemp_range=choose([0.0, 0.0, 0.5, 2.0]),
        dynatemp_exponent=choose([1.0, 0.5, 2.0, 0.0]),
        top_n_sigma=choose([0.0, 0.0, 1.0, 2.5, 0.01]),
        typical_p=choose([1.0, 1.0, 0.9, 0.2, 1e-6]),
        epsilon_cutoff=choose([0.0, 0.0, 1e-3, 0.2]),
        eta_cutoff=choose([0.0, 0.0, 1e-3, 0.3]),
        xtc_probability=choose([0.0, 0.0, 0.5, 1.0]),
        xtc_threshold=choose([0.1, 0.01, 0.0, 0.5]),
        exempt=torch.randint(0, vocab_size, (3,), generator=generator),
    )
    return SamplingRows(
        temperature=choose([0.0, 1e-5, 0.7, 1.0, 1.0, 5.0]),
        seeds=torch.randint(-(2**62), 2**62, (num_rows,), generator=generator),
        positions=torch.randint(0, 2**31, (num_rows,), generator=generator),
        top_k=choose([0, 0, 0, 1, 50, vocab_size - 1, vocab_size + 1], torch.int32),
        top_p=choose([1.0, 1.0, 0.9, 0.95, 0.5, 1e-9, 1 - 1e-7]),
        min_p=choose([0.0, 0.0, 1e-6, 0.05, 1.0]),
        rare=rare,
    )


@pytest.mark.skipif(backend.cpu_library() is None, reason="no CPU library")
@pytest.mark.parametrize("has_rare", [True, False])
@pytest.mark.parametrize("vocab_size", [1, 5, 65, 700, 5000, 30_000])
def test_bodies_agree_bit_for_bit(vocab_size, has_rare):
    generator = torch.Generator().manual_seed(vocab_size)
    num_rows = 150 if vocab_size < 1000 else 24
    scales = torch.tensor([0.01, 1.0, 1.0, 2.0, 3.0, 6.0])
    logits = torch.randn(num_rows, vocab_size, generator=generator)
    logits *= scales[torch.randint(6, (num_rows, 1), generator=generator)]
    logits[::7] = logits[::7].round()
    logits[::11, ::3] = -torch.inf
    logits[5] = 3.0
    rows = random_rows(num_rows, vocab_size, generator)
    rows = rows if has_rare else rows._replace(rare=None)
    results = []
    for body in ("native", "reference"):
        with backend.set_backend(body):
            tokens = sample_rows(logits, rows)
            results.append((tokens, truncate_(logits.clone(), rows), argmax(logits)))
    for native, expected in zip(*results, strict=True):
        assert torch.equal(native, expected)
    tokens, x, _ = results[0]
    is_empty = (logits == -torch.inf).all(1)
    assert torch.equal(tokens == -1, is_empty)  # no other row is left without a token
    assert torch.equal(x.gather(1, tokens[:, None].clamp(min=0)).squeeze(1) > -torch.inf, ~is_empty)  # drawn is kept


@pytest.mark.skipif(backend.cpu_library() is None, reason="no CPU library")
@pytest.mark.parametrize("kind", ["normal", "coarse", "halves", "sparse"])
@pytest.mark.parametrize("top_p", [1e-6, 0.9, 0.999])
def test_nuclei_of_long_rows(kind, top_p):
    """The proof by rough sums and the exact border, on flat and peaked rows with ties and bans."""
    generator = torch.Generator().manual_seed(int(top_p * 1000))
    logits = torch.randn(12, 4999, generator=generator) * torch.linspace(0.05, 8, 12)[:, None]
    if kind == "coarse":
        logits = (logits * 2).round() / 2
    if kind == "halves":
        logits = logits.bfloat16().float()
    if kind == "sparse":
        logits[:, torch.rand(4999, generator=generator) < 0.5] = -torch.inf
    for temperature, min_p in ((1.0, 0.0), (1.6, 0.001)):
        rows = make_rows(12, temperature=temperature, top_p=top_p, min_p=min_p)
        native = sample_rows(logits, rows)
        with backend.set_backend("reference"):
            assert torch.equal(native, sample_rows(logits, rows))


@both_bodies
def test_gumbel_argmax(body):
    """Arg-max of logits + noise in float64, its own stream per purpose, and the sampler's token at T = 1."""
    logits = make_logits("mixed", 200, 70, 9)
    seeds, positions = torch.arange(200) * 7919, torch.arange(200)
    with backend.set_backend(body):
        tokens = gumbel_argmax(logits, seeds, positions, PURPOSE_PROPOSAL)
        shared = gumbel_argmax(logits, seeds, positions)
        drawn = sample_rows(logits, make_rows(200)._replace(seeds=seeds, positions=positions))
    noise = gumbel_noise(seeds, positions, 70, PURPOSE_PROPOSAL)
    assert torch.equal(tokens, (logits.double() + noise.double()).argmax(1))
    assert torch.equal(shared, drawn)
    assert not torch.equal(shared, tokens)


@both_bodies
def test_argmax_ties_to_the_lower_id(body):
    logits = torch.zeros(3, 200)
    logits[1, [150, 70, 199]] = 2.0
    logits[2, 1:] = -torch.inf
    with backend.set_backend(body):
        assert argmax(logits).tolist() == [0, 70, 0]
        assert argmax(logits[:0]).tolist() == []


def test_wrong_rare_fields_are_named():
    rows = make_rows(2, typical_p=0.5)
    with pytest.raises(ValueError, match=r"typical_p: expected float32 \[2\] on cpu, got float64 \[2\]"):
        sample_rows(torch.zeros(2, 5), rows._replace(rare=rows.rare._replace(typical_p=rows.rare.typical_p.double())))
    with pytest.raises(ValueError, match=r"seeds: expected int64 \[2\]"):
        gumbel_argmax(torch.zeros(2, 5), torch.zeros(3, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"logits: expected float32 \[L, V\] with contiguous columns"):
        truncate_(torch.zeros(5, 2).T, rows)
