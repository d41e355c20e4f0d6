"""docs/capabilities.md's section on HTTP is what happens: each cell's bodies, sent to a server over a toy model.

That fields which work have an effect: properties/test_http_fields.py.
"""

from __future__ import annotations

import asyncio

import pytest
from fakes import ByteTokenizer, FakeModel
from http_client import error_of, toy_server

from decodex.capabilities import EXAMPLES
from decodex.server.capabilities import ENDPOINTS, bodies, cells, page_markdown
from decodex.server.sampling import TABLE

CELLS = cells()
VARYING = ("id", "created", "created_at", "completed_at", "output", "metadata", "user", "safety_identifier")


def test_the_page_is_up_to_date(repository):
    """python -m decodex.server.capabilities docs/capabilities.md."""
    assert (repository / "docs/capabilities.md").read_text(encoding="utf-8") == page_markdown()
    known = {*TABLE, *(name for fields in ENDPOINTS.values() for name in fields.model_fields)}
    assert set(CELLS) == known
    assert {*EXAMPLES} <= known


def text_of(response):
    """The answer, without what differs from one response to the next, or repeats the request."""
    body = response.json()
    texts = [part["text"] for item in body.get("output", ()) for part in item["content"]]
    return texts, {name: value for name, value in body.items() if name not in VARYING}


@pytest.mark.parametrize("path", ENDPOINTS)
def test_each_cell_is_what_happens(path):
    async def main():
        engine = {"model": FakeModel(257, 4096), "tokenizer": ByteTokenizer(), "num_blocks": 1024}
        async with toy_server(max_model_len=256, **engine) as toy:
            for name, line in CELLS.items():
                cell = line[path]
                asking, idle = bodies(path, name)
                asking = {"seed": 1, **asking}
                response = await toy.post(path, asking)
                if cell.error is None:
                    assert str(cell) == "works"
                    assert response.status_code == 200, (asking, response.text)
                    continue
                expected = cell.error.body["error"]
                found = error_of(response)
                assert response.status_code == cell.error.status, (asking, found)
                assert (found["code"], found["param"]) == (expected["code"], expected["param"])
                assert found["param"].split(".")[0] == name
                assert str(cell).endswith(f"{cell.error.status} `{found['code']}`")
                for body in idle:
                    length = {"max_output_tokens" if path == "/v1/responses" else "max_tokens": 8, "seed": 1}
                    plain = {key: value for key, value in body.items() if key != name}
                    answers = [await toy.post(path, {**length, **one}) for one in (plain, plain, body)]
                    assert [answer.status_code for answer in answers] == [200] * 3, (body, answers[2].text)
                    assert text_of(answers[2]) == text_of(answers[1]), f"{body} is not without an effect"
            assert await toy.is_idle()

    asyncio.run(main())
