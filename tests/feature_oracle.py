"""What the row pipeline must give, one growing prefix at a time, by transformers' processors and plain Python.

Nothing here is shared with decodex but the last kernel call (steps 6 to 8), which has tests of its own. Words and
markers are looked for in decoded text, repetitions by comparing slices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import torch
import transformers
from fakes import EOS, hash_logits
from transformers.generation import logits_process as theirs

from decodex.kernels.rng import derive_seed, seed_bits
from decodex.kernels.sampling import RareRows, SamplingRows, sample_rows, truncate_
from decodex.params import SamplingParams

assert transformers


def expected_logits(raw: np.ndarray, prompt: Sequence[int], output: Sequence[int], params: SamplingParams, tokenizer):
    """Logits [1, V] after steps 2 to 4, from raw ones [V]."""
    tokens = [*prompt, *output]
    ids = torch.tensor([tokens])
    logits = torch.from_numpy(raw.copy())[None]
    for token, bias in params.logit_bias.items():
        logits[0, token] += bias
    if params.allowed_token_ids is not None:
        banned = [t for t in range(len(raw)) if t not in params.allowed_token_ids]
        logits[0, banned] = -torch.inf
    for token in range(len(raw)) if params.bad_words else ():
        text = tokenizer.decode([*output, token], params.skip_special_tokens)
        if any(word in text for word in params.bad_words):
            logits[0, token] = -torch.inf
    if params.no_repeat_ngram_size is not None:
        logits = theirs.NoRepeatNGramLogitsProcessor(params.no_repeat_ngram_size)(ids, logits)
    enders = sorted({*params.stop_token_ids, *(() if params.ignore_eos else (EOS,))})
    if params.min_tokens and enders:
        held = theirs.MinNewTokensLengthLogitsProcessor(len(prompt), params.min_tokens, enders, device="cpu")
        logits = held(ids, logits)
    forced = forced_token(prompt, output, params, tokenizer)
    if forced is not None:
        logits[0, [t for t in range(len(raw)) if t != forced]] = -torch.inf
    first = 0 if params.penalty_last_n is None else max(0, len(tokens) - params.penalty_last_n)
    if params.repetition_penalty is not None:
        logits = theirs.RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(ids[:, first:], logits)
    for token in {*tokens[max(first, len(prompt)) :]}:
        count = tokens[max(first, len(prompt)) :].count(token)
        logits[0, token] -= np.float32(params.frequency_penalty or 0) * np.float32(count)
        logits[0, token] -= np.float32(params.presence_penalty or 0)
    if params.dry_multiplier is not None:
        for token, length in dry_lengths(tokens, params, tokenizer).items():
            penalty = params.dry_multiplier * params.dry_base ** (length - params.dry_allowed_length)
            logits[0, token] -= np.float32(penalty)
    for processor in params.logits_processors:
        logits = processor.oracle(tokens, logits)
    return logits


def dry_lengths(tokens: list[int], params: SamplingParams, tokenizer) -> dict[int, int]:
    """The scan of text-generation-webui's DRYLogitsProcessor: token -> longest repetition that it would prolong."""
    breakers = {t for t in range(tokenizer.vocab_size)
                if any(b in tokenizer.decode([t], False) for b in params.dry_sequence_breakers)}  # fmt: skip
    found: dict[int, int] = {}
    if not tokens or tokens[-1] in breakers:
        return found
    for i in range(len(tokens) - 1):
        if tokens[i] != tokens[-1] or tokens[i + 1] in breakers:
            continue
        length = 1
        while i - length >= 0 and tokens[i - length] == tokens[-1 - length] and tokens[i - length] not in breakers:
            length += 1
        found[tokens[i + 1]] = max(found.get(tokens[i + 1], 0), length)
    return {token: length for token, length in found.items() if length >= params.dry_allowed_length}


def forced_token(prompt: Sequence[int], output: Sequence[int], params: SamplingParams, tokenizer) -> int | None:
    """The end marker's token where the thinking budget is spent (markers of one token each)."""
    if params.max_thinking_tokens is None:
        return None
    start, end = tokenizer.encode("<think>", False)[0], tokenizer.encode("</think>", False)[0]
    spent, is_inside = 0, False
    for place, token in enumerate([*prompt, *output]):
        if is_inside and token == end:
            is_inside = False
        elif is_inside:
            spent += place >= len(prompt)
        elif token == start:
            is_inside = True
    return end if is_inside and spent >= params.max_thinking_tokens else None


def loops(output: list[int], params: SamplingParams) -> bool:
    """Whether an output ends in the repetition that repetition_stop describes."""
    if params.repetition_stop is None:
        return False
    for period in range(1, params.repetition_stop_period + 1):
        size = max(params.repetition_stop * period, params.repetition_stop_span, 2 * period)
        tail = output[-size:]
        if len(output) >= size and all(tail[i] == tail[i - period] for i in range(period, size)):
            return True
    return False


def row_parameters(params: SamplingParams, seed: int, position: int, exempt: Sequence[int] = ()) -> SamplingRows:
    """Steps 6 to 8 of one row."""

    def one(value: float | None, off: float) -> torch.Tensor:
        return torch.tensor([off if value is None else value], dtype=torch.float32)

    rare = RareRows(
        one(params.dynatemp_range, 0), one(params.dynatemp_exponent, 1), one(params.top_n_sigma, 0),
        one(params.typical_p, 1), one(params.epsilon_cutoff, 0), one(params.eta_cutoff, 0),
        one(params.xtc_probability, 0), one(params.xtc_threshold, 0.1), torch.tensor(sorted(exempt), dtype=torch.int64),
    )  # fmt: skip
    return SamplingRows(
        temperature=one(params.temperature, 1),
        seeds=torch.tensor([seed_bits(seed)]),
        positions=torch.tensor([position]),
        top_k=torch.tensor([params.top_k or 0], dtype=torch.int32),
        top_p=one(params.top_p, 1),
        min_p=one(params.min_p, 0),
        rare=rare,
    )


def expected(
    prompt: Sequence[int], params: SamplingParams, tokenizer, choice: int = 0, logits_of: Callable | None = None
) -> SimpleNamespace:
    """token_ids, raw and processed log-probability rows [V] for each, and the finish reason, of one choice."""
    logits_of = logits_of or (lambda prefix: hash_logits(prefix, tokenizer.vocab_size))
    seed = derive_seed(params.seed, choice)
    output: list[int] = []
    raw_rows, processed_rows = [], []
    while True:
        raw = logits_of([*prompt, *output])
        logits = expected_logits(raw, prompt, output, params, tokenizer)
        exempt = [*tokenizer.eos_token_ids, *(t for t, text in enumerate(tokenizer.texts) if text == "\n")]
        rows = row_parameters(params, seed, len(prompt) + len(output), exempt)
        token = sample_rows(logits, rows).item()
        reason = None
        if token < 0:
            reason = "error"
        else:
            raw_rows.append(torch.log_softmax(torch.from_numpy(raw).double(), 0))
            processed_rows.append(torch.log_softmax(truncate_(logits.clone(), rows)[0].double(), 0))
            output.append(token)
            may_stop = len(output) > params.min_tokens
            is_end = token in params.stop_token_ids or (token == EOS and not params.ignore_eos)
            if may_stop and (is_end or loops(output, params)):
                reason = "stop"
            elif len(output) == params.max_tokens:
                reason = "length"
        if reason is not None:
            return SimpleNamespace(token_ids=output, raw=raw_rows, processed=processed_rows, finish_reason=reason)
