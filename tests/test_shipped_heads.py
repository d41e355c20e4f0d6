"""speculative_config="auto": the head that comes with a model, by the digest of its weights, or no speculation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import FakeModel, make_engine

from decodex import EngineConfig, SamplingParams
from decodex.cli.flags import Parser, add_flags, given
from decodex.errors import RequestError
from decodex.shipped_heads import HEADS, shipped_head, with_speculation
from decodex.speculative_config import AUTO, SpeculativeConfig

CHECKPOINT = Path("the folder of the model")


@pytest.fixture
def heads(tmp_path):
    """A folder with two heads for the fake model, and one for another."""
    ours = FakeModel.weights_digest
    for name, digest in (("another/eagle3", "0" * 64), ("fake/eagle3", ours), ("fake/mtp", ours)):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"target_weights_digest": digest}))
    return tmp_path


def test_the_head_of_these_weights_is_found(heads):
    config = with_speculation(EngineConfig(speculative_config=AUTO), FakeModel(), CHECKPOINT, folder=heads)
    assert config.speculative_config == SpeculativeConfig(
        cascade=["forced", "prediction", "suffix", "eagle3"], model=str(heads / "fake" / "eagle3")
    )
    assert shipped_head("1" * 64, folder=heads) is None


@pytest.mark.parametrize("method", ["eagle3", "mtp"])
def test_a_method_without_a_model_means_the_shipped_head(heads, method):
    config = with_speculation(
        EngineConfig(speculative_config={"method": method, "tree": [2, 1]}), FakeModel(), CHECKPOINT, folder=heads
    )
    assert config.speculative_config == SpeculativeConfig(
        method=method, tree=[2, 1], model=str(heads / "fake" / method)
    )


def test_without_a_shipped_head_a_module_is_looked_for_in_the_model_and_a_head_is_missed(tmp_path):
    config = with_speculation(
        EngineConfig(speculative_config={"method": "mtp"}), FakeModel(), CHECKPOINT, folder=tmp_path
    )
    assert config.speculative_config == SpeculativeConfig(method="mtp", model=str(CHECKPOINT))
    with pytest.raises(RequestError, match=r"speculative_config\.model: got None, .* no head comes with these weights"):
        with_speculation(
            EngineConfig(speculative_config={"method": "eagle3"}), FakeModel(), CHECKPOINT, folder=tmp_path
        )
    with pytest.raises(RequestError, match=r"speculative_config\.model: got None, expected the checkpoint of"):
        EngineConfig(speculative_config={"method": "eagle"})


def test_it_is_looked_for_without_a_word_about_it():
    assert EngineConfig().speculative_config == AUTO
    suffix = SpeculativeConfig(method="suffix")
    assert EngineConfig(spec_method="suffix").speculative_config == suffix
    assert EngineConfig(speculative_config=None, spec_method="suffix").speculative_config == suffix


@pytest.mark.parametrize("value", [None, False, True, {"method": "suffix"}])
def test_what_was_asked_for_stays(heads, value):
    config = EngineConfig(speculative_config=value)
    assert with_speculation(config, FakeModel(), CHECKPOINT, folder=heads) is config


def test_a_model_without_a_head_speculates_on_request_only(tmp_path):
    config = with_speculation(EngineConfig(speculative_config=AUTO), FakeModel(), CHECKPOINT, folder=tmp_path)
    assert config.speculative_config is None
    engine = make_engine(speculative_config=AUTO)
    assert engine.admission.admit([1], SamplingParams()).speculation is None
    assert engine.admission.admit([1], SamplingParams(speculative=True)).speculation == SpeculativeConfig()


def test_auto_can_be_said_on_the_command_line():
    parser = Parser(prog="x")
    add_flags(parser, EngineConfig)
    assert given(parser.parse_args(["--speculative-config", "auto"]), EngineConfig)["speculative_config"] == AUTO


def test_shipped_heads_are_named_by_their_targets():
    paths = list(HEADS.glob("*/*/config.json"))
    digests = [json.loads(path.read_text())["target_weights_digest"] for path in paths]
    assert all(len(digest) == 64 for digest in digests)
    methods = [(digest, path.parent.name) for digest, path in zip(digests, paths)]
    assert len(set(methods)) == len(methods)
