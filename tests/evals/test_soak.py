"""A little of evals/server/soak.py, over a toy model; and it notices an answer that is not replayed."""

from __future__ import annotations

import asyncio
import pathlib
import types

import pytest
from fakes import ByteTokenizer, FakeModel
from http_client import toy_socket


@pytest.fixture
def soak(repository: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    monkeypatch.syspath_prepend(str(repository / "evals" / "server"))
    import soak

    return soak


def test_a_short_soak_finds_nothing_and_replays(soak):
    found = soak.Soak()

    async def main():
        engine = {"model": FakeModel(257, 4096), "tokenizer": ByteTokenizer(), "num_blocks": 512}
        async with toy_socket(max_num_seqs=6, **engine) as toy:
            port = int(toy.url.rpartition(":")[2])
            askers = [soak.asks.Asker(number, max_tokens=16, tools=False) for number in range(8)]
            while len(found.finished) < 20 or not found.counts["refused"] or not found.counts["left"]:
                await soak.run_clients(port, found, askers, 0.3)
            assert await toy.is_idle()
            found.finished = found.finished[:20]
            counts = await soak.replay(port, found, 0.0, seed=1)
            assert found.faults == []
            ask, choices = next(one for one in found.finished if one[1][0].is_replayable)
            choices[0].text += "?"
            found.finished = [(ask, {0: choices[0]})]
            return counts, await soak.replay(port, found, 0.0, seed=1)

    counts, wrong = asyncio.run(main())
    assert counts["replayed"] + counts["not_replayable"] == counts["choices"] >= 20
    assert counts["replayed"] > 10
    assert wrong["differ"] == 1
    assert len(found.faults) == 1
