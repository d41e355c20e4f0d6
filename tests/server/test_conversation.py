"""Conversations through templates of three families: what the model reads, and what it may write then."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from decodex.errors import RequestError
from decodex.server.config import ServerConfig
from decodex.server.conversation import Conversations
from decodex.server.sampling import Sampling
from decodex.server.tools.request import read_function, read_tool_request
from decodex.structured_outputs import StructuredOutputsParams
from decodex.tokenizer import Tokenizer

THINKING = """
{%- if tools %}SYSTEM {% for tool in tools %}{{ tool | tojson }}{% endfor %}
{{- '\n' }}<tool_call>
{"name": <name>, "arguments": <arguments>}
</tool_call>|{% endif %}
{%- for m in messages %}
{{- m.role.upper() }} {% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}
{%- for call in m.tool_calls or [] %}
{{- '\n' }}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}
{%- if m.role == 'tool' %}({{ m.name }}){% endif %}|
{%- endfor %}
{%- if add_generation_prompt %}ASSISTANT {% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""
SINGLE = """
{%- for m in messages %}
{%- if m.tool_calls %}
{%- if m.tool_calls | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}
{%- set call = m.tool_calls[0].function %}
{{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}' }}
{%- elif m.role == 'tool' %}IPYTHON {{ m.content }}
{%- else %}{{ m.role.upper() }} {{ m.content }}{% endif %}|
{%- endfor %}
{%- if tools %}<|python_tag|>{{ tools | length }}{% endif %}"""
LISTED = """
{%- for m in messages %}
{%- if m.tool_calls %}[TOOL_CALLS][
{%- for call in m.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('nine characters') }}{% endif %}
{{- call.function | tojson }}{{ ', ' if not loop.last }}
{%- endfor %}]
{%- elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}, {{ m.tool_call_id | length }}
{%- else %}{{ m.content }}{% endif %}|
{%- endfor %}
{%- if tools %}[AVAILABLE_TOOLS]{% endif %}"""
PLAIN = "{% for m in messages %}{{ m['role'] + ' ' + m['content'] + '|' }}{% endfor %}"
ADD = {"name": "add", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}
REQUEST = read_tool_request([read_function(ADD, "tools[0].function")], None, None)
CALLS = [
    {"id": f"call_{x}", "type": "function", "function": {"name": "add", "arguments": f'{{"x": {x}}}'}} for x in (1, 2)
]
CHAT = [
    {"role": "user", "content": "1 + 2?"},
    {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "call_1", "content": "one"},
    {"role": "tool", "tool_call_id": "call_2", "content": "two"},
]


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory):
    """Makes the Conversations of a template; tokens are bytes, and two markers special tokens."""
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({sign: at for at, sign in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["</s>", "[TOOL_CALLS]", "<|python_tag|>"])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')

    def make(template: str, **config: str) -> Conversations:
        tokenizer = Tokenizer(folder)
        tokenizer.use_chat_template(template)
        return Conversations(tokenizer, ServerConfig(**config))

    return make


def prepared(conversations: Conversations, chat=CHAT, request=REQUEST, sampling=None, **options):
    sampling = sampling or Sampling({})
    found = conversations.prepare(chat, request, sampling, **options)
    return conversations._tokenizer.decode(found.token_ids, skip_special_tokens=False), found.plan, sampling


def test_a_thinking_model_with_hermes_calls(conversations) -> None:
    text, plan, sampling = prepared(conversations(THINKING))
    assert text == (
        'SYSTEM {"type": "function", "function": {"name": "add", "description": "", "parameters": '
        '{"type": "object", "properties": {"x": {"type": "integer"}}}}}\n'
        '<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call>|USER 1 + 2?|'
        "ASSISTANT <think>hm</think>\n"
        '<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "add", "arguments": {"x": 2}}\n</tool_call>|'
        "TOOL one(add)|TOOL two(add)|ASSISTANT "
    )
    assert plan.syntax.name == "hermes"
    assert plan.reasoning is not None
    assert not plan.reasoning.is_open
    assert not plan.shows_special_tokens
    assert sampling.values["structured_outputs"].kind == "structural_tag"


@pytest.mark.parametrize(
    ("options", "end", "budget"),
    [
        ({"effort": "none"}, "<think>\n\n</think>\n\n", None),
        ({"template_values": {"enable_thinking": False}}, "<think>\n\n</think>\n\n", None),
        ({"effort": "low"}, "ASSISTANT ", 1024),
        ({"effort": "high"}, "ASSISTANT ", None),
    ],
)
def test_efforts_of_a_thinking_model(conversations, options, end: str, budget: int | None) -> None:
    text, plan, sampling = prepared(conversations(THINKING), CHAT[:1], None, **options)
    assert text.endswith(end)
    assert (plan.reasoning is None) == (end != "ASSISTANT ")
    assert sampling.values.get("max_thinking_tokens") == budget


def test_json_after_reasoning_may_be_limited(conversations) -> None:
    """A limit beside a schema would be refused: the schema is the whole output's no more."""
    sampling = Sampling({"structured_outputs": {"json": {"type": "object"}}})
    prepared(conversations(THINKING), CHAT[:1], None, sampling, effort="low")
    params = sampling.params(ServerConfig())
    assert params.max_thinking_tokens == 1024
    assert isinstance(params.structured_outputs, StructuredOutputsParams)
    assert params.structured_outputs.kind == "structural_tag"


def test_a_model_of_single_calls(conversations) -> None:
    text, plan, _ = prepared(conversations(SINGLE))
    assert text == (
        'USER 1 + 2?|{"name": "add", "parameters": {"x": 1}}|IPYTHON one|'
        '{"name": "add", "parameters": {"x": 2}}|IPYTHON two|<|python_tag|>1'
    )
    assert plan.syntax.name == "llama3"
    assert plan.shows_special_tokens
    assert plan.reasoning is None


def test_a_model_of_lists_of_calls(conversations) -> None:
    text, plan, sampling = prepared(conversations(LISTED))
    assert text == (
        '1 + 2?|[TOOL_CALLS][{"name": "add", "arguments": {"x": 1}}, {"name": "add", "arguments": {"x": 2}}]|'
        "[TOOL_RESULTS]one, 9|[TOOL_RESULTS]two, 9|[AVAILABLE_TOOLS]"
    )
    assert plan.syntax.name == "mistral"
    assert plan.shows_special_tokens
    assert sampling.values["skip_special_tokens"] is False


def test_a_model_without_tools(conversations) -> None:
    text, plan, _ = prepared(conversations(PLAIN))
    system, *rest = text.split("|")
    assert system.startswith('system You can call these functions:\n{"name": "add"')
    assert rest == [
        "user 1 + 2?",
        'assistant {"tool_calls": [{"name": "add", "arguments": {"x": 1}}, {"name": "add", "arguments": {"x": 2}}]}',
        "user Result of add: one\nResult of add: two",
        "",
    ]
    assert plan.syntax.name == "json"


def test_formats_by_flag(conversations) -> None:
    _, plan, _ = prepared(conversations(PLAIN, tool_call_format="hermes", reasoning_format="think"))
    assert plan.syntax.name == "hermes"
    assert plan.reasoning is not None
    _, plan, _ = prepared(conversations(THINKING, reasoning_format="none"))
    assert plan.reasoning is None


def test_no_tools_leave_everything_as_it_is(conversations) -> None:
    text, plan, sampling = prepared(conversations(PLAIN), CHAT[:1], None)
    assert text == "user 1 + 2?|"
    assert plan.structured_outputs is None
    assert sampling.values == {}


def test_variables_that_have_fields_of_their_own(conversations) -> None:
    with pytest.raises(RequestError, match=r"^chat_template_kwargs\.tools: "):
        prepared(conversations(PLAIN), CHAT[:1], None, template_values={"tools": []})
