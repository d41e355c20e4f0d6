"""Random arrivals, aborts, preemptions and drafts against the engine: integrity at every step, an empty pool at the
end, and every request's tokens equal to a plain loop over its own prefix (kinds K2, K8, K10 and K11)."""

from __future__ import annotations

from fakes import RandomProposer, expected_tokens, make_engine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decodex.params import SamplingParams
from decodex.request import Status

# prompts share beginnings, so that the prefix cache has something to find
PROMPTS = st.builds(
    lambda stem, tail: [1, 2, 3, 4, 5, 6, 7, 8, 9, 1][:stem] + tail,
    st.integers(0, 10),
    st.lists(st.integers(0, 11), min_size=1, max_size=12),
)
PARAMS = st.builds(
    SamplingParams,
    n=st.integers(1, 3),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([None, 1, 4]),
    top_p=st.sampled_from([None, 0.6, 0.95]),
    min_p=st.sampled_from([None, 0.1]),
    seed=st.integers(0, 2**64 - 1),
    max_tokens=st.integers(1, 24),
    ignore_eos=st.booleans(),
    stop_token_ids=st.sampled_from([None, [3]]),
)
REQUEST = st.tuples(PROMPTS, PARAMS, st.integers(0, 12), st.integers(0, 2), st.one_of(st.none(), st.integers(0, 30)))


def check_integrity(engine) -> None:
    """Blocks, slots, lists and KV lengths account for each other exactly."""
    scheduler, table = engine.scheduler, engine.table
    scheduler.pool.check([seq.block_ids for seq in scheduler.running])
    assert all(not seq.block_ids and seq.slot < 0 for seq in scheduler.waiting)
    assert [seq.key for seq in scheduler.running] == sorted(seq.key for seq in scheduler.running)
    assert [seq.key for seq in scheduler.waiting] == sorted(seq.key for seq in scheduler.waiting)
    held = {slot: seq for slot, seq in enumerate(table.sequences) if seq is not None}
    assert set(held.values()) == set(scheduler.running)
    for slot, seq in held.items():
        assert seq.slot == slot
        assert seq.status is Status.RUNNING
        assert 0 <= seq.num_computed < len(seq.token_ids) <= seq.max_total_tokens
        assert len(seq.block_ids) * engine.config.block_size >= seq.num_computed
        assert table.block_tables[slot, : len(seq.block_ids)].tolist() == seq.block_ids


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    requests=st.lists(REQUEST, min_size=1, max_size=8),
    num_blocks=st.integers(14, 40),
    max_num_seqs=st.integers(1, 6),
    budget=st.sampled_from([1, 3, 8, 64]),
    caching=st.booleans(),
    drafts=st.sampled_from([None, "chain", "tree"]),
    proposer_seed=st.integers(0, 1000),
)
def test_random_schedules(requests, num_blocks, max_num_seqs, budget, caching, drafts, proposer_seed):
    proposer = None if drafts is None else RandomProposer(proposer_seed, chain=drafts == "chain")
    engine = make_engine(
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        enable_prefix_caching=caching,
        proposer=proposer,
        max_model_len=64,
    )
    todo = sorted(enumerate(requests), key=lambda item: item[1][2])
    live, aborts, step = {}, {}, 0
    while todo or engine.has_work:
        while todo and todo[0][1][2] <= step:
            index, (prompt, params, _, priority, abort_after) = todo.pop(0)
            request = engine.admission.admit(prompt, params, priority=priority)
            engine.add(request)
            live[index] = request
            if abort_after is not None:
                aborts[index] = step + abort_after
        for index, when in list(aborts.items()):
            if when == step:
                engine.abort(live[index].request_id)
                del aborts[index]
        if engine.has_work:
            engine.step()
        check_integrity(engine)
        step += 1
        assert step < 5000, "no end"
    assert engine.scheduler.pool.num_free == num_blocks
    for index, (prompt, params, *_) in enumerate(requests):
        for choice, output in enumerate(engine.output_of(live[index]).outputs):
            expected = expected_tokens(prompt, params, choice)
            if output.finish_reason == "abort":
                assert output.token_ids == expected[: len(output.token_ids)]
            else:
                assert output.finish_reason in ("stop", "length")
                assert output.token_ids == expected
