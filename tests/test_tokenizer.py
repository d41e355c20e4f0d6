"""The tokenizer on small ones made here, against transformers' own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from decodex.errors import ModelError, RequestError
from decodex.tokenizer import Tokenizer

TEXT = ["the quick brown fox jumps over the lazy dog", "hello hello world", "{'a': 1, \"b\": [2, 3]}", "naïve 東京 🙂"]
TEMPLATE = (
    "{{ bos_token }}\n"
    "{% if tools %}\n"
    "  [tools]{{ tools | tojson(indent=2) }}\n"
    "{% endif %}\n"
    "{% for message in messages %}\n"
    "  {% if message.role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}\n"
    "  {% generation %}<|{{ message.role }}|>{{ message.content | trim }}{{ eos_token }}{% endgeneration %}\n"
    "  {% if loop.index > 5 %}{% break %}{% endif %}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}<|assistant|>{{ mood | default('calm') }} {{ {'x': '<é>'} | tojson }}{% endif %}"
)
CHAT = [{"role": "system", "content": " be brief "}, {"role": "user", "content": "hello 🙂"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>", "<|user|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXT, trainer)
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(path)
    (path / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 9]}))
    return path


@pytest.fixture(scope="module")
def ours(folder: Path) -> Tokenizer:
    return Tokenizer(folder)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", [*TEXT, "", " ", "<s>mixed</s> <|user|>", "\x00\n"])
@pytest.mark.parametrize("special", [True, False])
def test_equals_transformers(ours: Tokenizer, theirs: Any, text: str, special: bool) -> None:
    ids = ours.encode(text, add_special_tokens=special)
    assert ids == theirs.encode(text, add_special_tokens=special)
    assert ours.decode(ids, skip_special_tokens=special) == theirs.decode(ids, skip_special_tokens=special)


def test_ids(ours: Tokenizer, theirs: Any) -> None:
    assert ours.eos_token_ids == {1, 7, 9}
    assert {0, 1} <= ours.special_ids
    assert ours.vocab_size == len(theirs)
    assert ours.id_to_token(0) == "<s>"
    assert ours.token_to_id("</s>") == 1
    assert ours.id_to_token(10**6) is None


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("values", [{}, {"mood": "merry"}])
def test_chat_equals_transformers(
    ours: Tokenizer, theirs: Any, tools: Any, prompt: bool, values: dict[str, Any]
) -> None:
    options = {"tools": tools, "add_generation_prompt": prompt, **values}
    assert ours.render_chat(CHAT, **options) == theirs.apply_chat_template(CHAT, tokenize=False, **options)
    expected = theirs.apply_chat_template(CHAT, tokenize=True, return_dict=False, **options)
    assert ours.apply_chat_template(CHAT, **options) == expected


def test_template_refusal_is_a_request_error(ours: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"messages: .*no robots"):
        ours.apply_chat_template([{"role": "robot", "content": "x"}])


@pytest.mark.parametrize("messages", [[], "hi", [{"content": "x"}], ["x"], [{"role": "user", "content": {1, 2}}]])
def test_bad_messages_name_the_field(ours: Tokenizer, messages: Any) -> None:
    with pytest.raises(RequestError, match="messages"):
        ours.apply_chat_template(messages)


@pytest.mark.parametrize(
    "template",
    ["{{ messages.__class__.__mro__ }}", "{{ ''.__class__ }}", "{{ messages.append(1) }}", "{{ cycler.__init__ }}"],
)
def test_templates_are_sandboxed(folder: Path, tmp_path: Path, template: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text(template)
    chat = [{"role": "user", "content": "x"}]
    try:
        text = Tokenizer(tmp_path).render_chat(chat)
    except RequestError:
        return
    assert "class" not in text
    assert "function" not in text


def test_named_templates(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.render_chat(CHAT) == "plain"
    assert tokenizer.render_chat(CHAT, tools=TOOLS) == "with tools"


def test_no_template_no_file_broken_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    tokenizer = Tokenizer(tmp_path)
    assert not tokenizer.has_chat_template
    with pytest.raises(RequestError, match="a model with a chat template"):
        tokenizer.apply_chat_template(CHAT)
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(ModelError, match="chat template is broken, line 1"):
        Tokenizer(tmp_path).render_chat(CHAT)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json: can't be read as a tokenizer"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer\.json, and no tokenizer can be built"):
        Tokenizer(tmp_path)
