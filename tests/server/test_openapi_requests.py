"""schemathesis over the OpenAPI document: requests that it allows, and others, are answered, and none with a 5xx."""

from __future__ import annotations

import pytest
import schemathesis
from fakes import ByteTokenizer, FakeModel, make_engine
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

from decodex import AsyncLLM
from decodex.server.app import create_app
from decodex.server.config import ServerConfig


def check_all(num_examples: int) -> dict[int, int]:
    """How many responses had which status."""
    engine = make_engine(model=FakeModel(257, 4096), tokenizer=ByteTokenizer(), num_blocks=1024, max_model_len=64)
    llm, counts = AsyncLLM.from_engine(engine), dict[int, int]()
    schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(llm, ServerConfig(max_n=4)))
    try:
        for found in schema.get_all_operations():
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                check_one(found.ok(), mode, num_examples, counts)
        assert llm.failure is None
        assert engine.scheduler.pool.num_free == engine.config.num_blocks
    finally:
        llm.shutdown()
    return counts


def check_one(operation, mode, num_examples, counts):
    @settings(
        max_examples=num_examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case):
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            case.body.pop("model", None)  # any other than the served one is a 404
        response = case.call()
        counts[response.status_code] = counts.get(response.status_code, 0) + 1
        assert response.status_code < 500, response.text
        assert '"internal_error"' not in response.text

    if mode is GenerationMode.POSITIVE or operation.body:
        check()


@pytest.mark.slow
def test_no_request_is_a_5xx():
    counts = check_all(300)
    assert counts[200] > 100, counts
    assert counts[400] > 300, counts
