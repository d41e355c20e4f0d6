"""Step costs: measured once, kept, and taken again where they were slow or damaged."""

from __future__ import annotations

import json

import pytest
import torch
from fakes import FakeModel

from decodex import cost_profile

CPU = torch.device("cpu")


@pytest.fixture
def seconds(monkeypatch, tmp_path):
    """What a step of so many rows takes, and how often all of it was measured."""
    monkeypatch.setenv("DECODEX_CACHE", str(tmp_path))
    state = {"row": 1.0, "token": 0.01, "profiles": 0}

    def measured(model, device, num_rows=cost_profile.NUM_ROWS, context=cost_profile.CONTEXT):
        state["profiles"] += num_rows == cost_profile.NUM_ROWS
        more = state["token"] * (context - cost_profile.CONTEXT)
        return {rows: state["row"] * (10 + rows) + rows * more for rows in num_rows}

    monkeypatch.setattr(cost_profile, "measured", measured)
    return state


def test_a_profile_is_kept_for_its_model(seconds):
    costs = [cost_profile.step_costs(FakeModel(), name, CPU) for name in ("a", "a", "b")]
    assert seconds["profiles"] == 2
    assert [cost.table(8)[8] for cost in costs] == [18.0] * 3
    for cost in costs:  # kept or not
        assert cost.table(8, 64)[8] == 18.0
        assert cost.table(8, 164)[8] == pytest.approx(18.0 + 8 * 100 * 0.01)


def test_a_profile_of_a_busy_machine_is_taken_again(seconds, tmp_path):
    seconds["row"] = 2.0
    cost_profile.step_costs(FakeModel(), "a", CPU)
    seconds["row"] = 1.0
    assert cost_profile.step_costs(FakeModel(), "a", CPU).table(1)[1] == 11.0
    seconds["row"] = 3.0  # now busy: what is known stays
    assert cost_profile.step_costs(FakeModel(), "a", CPU).table(1)[1] == 11.0
    assert seconds["profiles"] == 2


@pytest.mark.parametrize("text", ["", "[]", '{"1": 2}', '{"rows": {"x": "y"}, "token_seconds": 0}', '{"rows": 3}'])
def test_a_damaged_file_is_measured_anew(seconds, tmp_path, text):
    cost_profile.step_costs(FakeModel(), "a", CPU)
    [path] = (tmp_path / "costs").iterdir()
    path.write_text(text)
    cost_profile.step_costs(FakeModel(), "a", CPU)
    assert seconds["profiles"] == 2
    assert sorted(map(int, json.loads(path.read_text())["rows"])) == list(cost_profile.NUM_ROWS)


def test_a_real_profile_never_falls():
    class Model:
        kv_spec = FakeModel.kv_spec

        def forward(self, batch, kv):
            """Four rows of each sequence read what it has, 64 tokens and each other."""
            size = len(batch.token_ids)
            assert batch.rows.ctx_lens.tolist() == [65 + row % 4 for row in range(size)]
            assert batch.rows.row_slot.tolist() == [row // 4 for row in range(size)]
            assert len(set(batch.slot_mapping.tolist())) == size

    points = cost_profile.measured(Model(), CPU)
    assert tuple(points) == cost_profile.NUM_ROWS
    table = cost_profile.CostModel.profiled(points).table(99)
    assert list(table[1:]) == sorted(table[1:])
    assert table[1] > 0
