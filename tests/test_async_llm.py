"""AsyncLLM: many coroutines, one engine thread; cancellation, failure and shutdown leave nobody waiting."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest
import torch
from fakes import VOCAB, FakeModel, expected_tokens, hash_logits, make_engine

from decodex import AsyncLLM, RequestError, SamplingParams
from decodex.engine_thread import MAX_BACKLOG, Listener
from decodex.errors import EngineError


def params_of(seed: int, max_tokens: int = 12) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=max_tokens, ignore_eos=True)


def test_concurrent_streams_get_what_they_get_alone():
    async def main():
        async with AsyncLLM.from_engine(make_engine(max_num_seqs=4)) as llm:

            async def one(seed):
                return [o async for o in llm.stream([1, 2, seed % VOCAB], params_of(seed))]

            return await asyncio.gather(*(one(seed) for seed in range(12)))

    for seed, outputs in enumerate(asyncio.run(main())):
        assert outputs[-1].finished
        assert outputs[-1].outputs[0].token_ids == expected_tokens([1, 2, seed % VOCAB], params_of(seed))
        assert not any(o.finished for o in outputs[:-1])


def test_generate_isolates_refusals_and_keeps_order():
    async def main():
        async with AsyncLLM.from_engine(make_engine()) as llm:
            outputs = await llm.generate([[1], "", [2]], params_of(1))
            with pytest.raises(RequestError, match="prompt"):
                await llm.generate("")
            chat = await llm.chat([{"role": "user", "content": "bc"}], params_of(2))
            return outputs, chat

    outputs, chat = asyncio.run(main())
    assert [o.error is None for o in outputs] == [True, False, True]
    assert outputs[2].outputs[0].token_ids == expected_tokens([2], params_of(1))
    assert chat[0].outputs[0].token_ids == expected_tokens([1, 2], params_of(2))


def test_closing_a_stream_or_cancelling_aborts():
    async def main():
        engine = make_engine()
        async with AsyncLLM.from_engine(engine) as llm:
            stream = llm.stream([1], params_of(1, 200))
            await anext(stream)
            await stream.aclose()
            task = asyncio.create_task(llm.generate([[1], [2]], params_of(1, 200)))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            for _ in range(200):
                if not engine.has_work:
                    break
                await asyncio.sleep(0.01)
            assert not engine.has_work
            assert engine.scheduler.pool.num_free == engine.config.num_blocks

    asyncio.run(main())


def test_abort_by_id_ends_the_stream_with_its_reason():
    async def main():
        async with AsyncLLM.from_engine(make_engine()) as llm:
            last = None
            async for output in llm.stream([1], params_of(1, 200), request_id="me"):
                last = output
                await llm.abort("me")
            return last

    last = asyncio.run(main())
    assert last.outputs[0].finish_reason == "abort"


def test_engine_failure_reaches_everyone_and_later_requests():
    def logits_of(prefix):
        if prefix[0] == 5 and len(prefix) > 4:
            raise RuntimeError("boom")
        return hash_logits(prefix, VOCAB)

    async def main():
        llm = AsyncLLM.from_engine(make_engine(model=FakeModel(logits_of=logits_of)))
        results = await asyncio.gather(
            llm.generate([1], params_of(1, 200)), llm.generate([5], params_of(2, 200)), return_exceptions=True
        )
        assert all(isinstance(r, EngineError) and "boom" in str(r) for r in results)
        assert llm.failure is not None
        with pytest.raises(EngineError, match="boom"):
            await llm.generate([1], params_of(1))

    asyncio.run(main())


def test_changed_torch_defaults_fail_what_is_in_flight_and_nothing_later():
    async def main():
        async with AsyncLLM.from_engine(make_engine()) as llm:
            torch.set_default_dtype(torch.float64)
            try:
                with pytest.raises(EngineError, match="torch's defaults are"):
                    await llm.generate([1, 2], params_of(1))
            finally:
                torch.set_default_dtype(torch.float32)
            return await llm.generate([1, 2], params_of(1))

    [output] = asyncio.run(main())
    assert output.outputs[0].token_ids == expected_tokens([1, 2], params_of(1))


def test_whatever_ends_the_thread_reaches_everyone():
    """An exception that is no Exception left everybody waiting."""

    async def main():
        engine = make_engine()
        engine.runner.stage = lambda plan: sys.exit(3)
        llm = AsyncLLM.from_engine(engine)
        with pytest.raises(EngineError, match="SystemExit"):
            await llm.generate([1, 2], params_of(1))
        with pytest.raises(EngineError, match="SystemExit"):
            await llm.generate([1, 2], params_of(1))

    asyncio.run(main())


def test_shutdown_ends_requests_in_flight():
    async def main():
        llm = AsyncLLM.from_engine(make_engine())
        task = asyncio.create_task(llm.generate([1], params_of(1, 250)))
        await asyncio.sleep(0.02)
        await asyncio.to_thread(llm.shutdown)
        with pytest.raises(EngineError, match="shut down"):
            await task

    asyncio.run(main())


def test_only_the_last_output_where_nothing_else_is_wanted():
    async def main():
        async with AsyncLLM.from_engine(make_engine()) as llm:
            return [o async for o in llm.stream([1, 2], params_of(1), only_last=True)]

    [output] = asyncio.run(main())
    assert output.finished
    assert output.outputs[0].token_ids == expected_tokens([1, 2], params_of(1))


def test_several_requests_of_one_listener_that_lags_behind():
    """A reader that never reads held a snapshot of every step: memory that grew with the square of the output."""

    async def main():
        async with AsyncLLM.from_engine(make_engine()) as llm:
            listener = Listener(asyncio.get_running_loop())
            for seed in (1, 2):
                llm.submit(await llm.admit([seed], params_of(seed, 100), request_id=str(seed)), listener)
            while llm.engine.has_work:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)
            assert len(listener._replies) <= MAX_BACKLOG
            last = {}
            while len([o for o in last.values() if o.finished]) < 2:
                output = await listener.next()
                before = last.get(output.request_id)
                tokens = output.outputs[0].token_ids
                assert before is None or before.outputs[0].token_ids == tokens[: len(before.outputs[0].token_ids)]
                last[output.request_id] = output
            return last

    last = asyncio.run(main())
    for seed in (1, 2):
        assert last[str(seed)].outputs[0].token_ids == expected_tokens([seed], params_of(seed, 100))


def test_equal_prompts_share_the_prefix_cache_under_the_same_salt_only():
    async def main():
        async with AsyncLLM.from_engine(make_engine()) as llm:
            cached = []
            for salt in ("a", "b", "a"):
                async for output in llm.stream(list(range(1, 11)), params_of(1), cache_salt=salt):
                    last = output
                cached.append(last.metrics.num_cached_tokens)
            return cached

    assert asyncio.run(main()) == [0, 0, 8]


def test_long_texts_are_tokenized_beside_the_event_loop():
    async def main():
        engine = make_engine(num_blocks=2048, model=FakeModel(max_position=8192))
        threads = []
        encode = engine.tokenizer.encode
        engine.tokenizer.encode = lambda *a, **k: threads.append(threading.current_thread()) or encode(*a, **k)
        async with AsyncLLM.from_engine(engine) as llm:
            [long] = await llm.generate("b" * 3000, params_of(1))
            [short] = await llm.generate("b", params_of(1))
            [guided] = await llm.generate([1], SamplingParams(max_tokens=2, prediction="b" * 3000))
        return threads, long, short, guided

    threads, long, short, guided = asyncio.run(main())
    assert [thread is threading.main_thread() for thread in threads] == [False, True, False]
    assert len(long.prompt_token_ids) == 3000
    assert short.finished
    assert guided.finished
