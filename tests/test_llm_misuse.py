"""What real programs do to an LLM object: threads, forks, torch's global switches, forgotten shutdowns, odd input."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import threading
import weakref

import pytest
import torch
from fakes import expected_tokens, make_engine

from decodex import LLM, AsyncLLM, EngineError, RequestError, SamplingParams

PARAMS = SamplingParams(temperature=1.0, seed=5, max_tokens=20, ignore_eos=True)


def test_threads_share_the_batch_and_get_their_own_answers():
    llm = LLM.from_engine(make_engine())
    results: dict[int, list] = {}

    def work(number: int) -> None:
        prompts = [[number, i] for i in range(1, 6)]
        if number % 2:
            results[number] = [list(llm.stream(prompt, PARAMS))[-1] for prompt in prompts]
        else:
            results[number] = llm.generate(prompts, PARAMS, use_tqdm=False)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, outputs in results.items():
        for i, output in enumerate(outputs, 1):
            assert output.outputs[0].token_ids == expected_tokens([number, i], PARAMS)
    assert len(results) == 6
    assert llm.engine.scheduler.pool.num_free == llm.engine.config.num_blocks


@pytest.mark.parametrize("change", ["dtype", "device"])
def test_changed_torch_defaults_are_refused_not_computed_with(change):
    """Tensors of another default dtype or device once reached the compiled kernels."""
    llm = LLM.from_engine(make_engine())
    before = torch.get_default_dtype()
    try:
        if change == "dtype":
            torch.set_default_dtype(torch.bfloat16)
        else:
            torch.set_default_device("meta")
        with pytest.raises(EngineError, match="torch's defaults"):
            llm.generate([[1]], PARAMS, use_tqdm=False)
    finally:
        torch.set_default_dtype(before)
        torch.set_default_device(None)
    [output] = llm.generate([[1]], PARAMS, use_tqdm=False)
    assert output.outputs[0].token_ids == expected_tokens([1], PARAMS)


@pytest.mark.parametrize("value", [1e39, 1e308, 10**400])
def test_numbers_beyond_fp32_are_refused_by_name(value):
    with pytest.raises(RequestError, match=r"^temperature"):
        SamplingParams(temperature=value)


@pytest.mark.parametrize("messages", [None, "hi", {"role": "user", "content": "b"}, iter([])])
def test_chat_refuses_what_is_no_conversation(messages):
    with pytest.raises(RequestError, match=r"^messages"):
        LLM.from_engine(make_engine()).chat(messages, PARAMS, use_tqdm=False)


def test_chat_has_no_keyword_that_nobody_reads():
    llm = LLM.from_engine(make_engine())
    with pytest.raises(TypeError, match="use_tqmd"):
        llm.chat([{"role": "user", "content": "b"}], PARAMS, use_tqmd=False)
    with pytest.raises(RequestError, match="chat_template_kwargs"):
        llm.chat([{"role": "user", "content": "b"}], PARAMS, chat_template_kwargs={"messages": []})


def test_forgotten_async_llm_ends_its_thread():
    llm = AsyncLLM.from_engine(make_engine())
    thread, engine = llm._thread._thread, weakref.ref(llm.engine)
    del llm
    gc.collect()
    thread.join(timeout=10)
    assert not thread.is_alive()
    del thread
    gc.collect()
    assert engine() is None


def _child(llm: AsyncLLM, queue) -> None:
    try:
        asyncio.run(llm.generate([1], PARAMS))
    except EngineError as error:
        queue.put(str(error))


def test_forked_child_is_told_instead_of_left_waiting():
    context = multiprocessing.get_context("fork")
    with_queue = context.Queue()
    llm = AsyncLLM.from_engine(make_engine())
    child = context.Process(target=_child, args=(llm, with_queue))
    child.start()
    assert "forked" in with_queue.get(timeout=60)
    child.join(timeout=60)
    llm.shutdown()


def test_stream_left_open_across_shutdown_closes_silently():
    async def main():
        llm = AsyncLLM.from_engine(make_engine())
        stream = llm.stream([1], SamplingParams(max_tokens=200, ignore_eos=True))
        await anext(stream)
        await asyncio.to_thread(llm.shutdown)
        await stream.aclose()

    asyncio.run(main())
