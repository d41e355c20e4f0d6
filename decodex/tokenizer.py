"""Text to token ids and back, and chat templates, without transformers where `tokenizer.json` is there.

Templates are untrusted code: they run in jinja2's immutable sandbox and see only plain data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decodex.errors import ModelError, RequestError
from decodex.models.source import ModelFiles, read_json
from decodex.token_bytes import ByteDecoder, without_leading

if TYPE_CHECKING:
    import jinja2

__all__ = ["Tokenizer"]

_SPECIAL_FIELDS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """The tokenizer of a model folder. Ids are plain ints; any thread may call `encode` and `decode`."""

    eos_token_ids: frozenset[int]  # every id that ends an answer: tokenizer, generation_config and config
    special_ids: frozenset[int]
    vocab_size: int  # added tokens included; the model's logits may be wider

    def __init__(self, folder: Path) -> None:
        """Read `folder`; ModelError names the file that is missing or can't be read."""
        import tokenizers

        optional = folder / "tokenizer_config.json"
        config = read_json(optional) if optional.exists() else {}
        file = folder / "tokenizer.json"
        if file.exists():
            try:
                self._backend = tokenizers.Tokenizer.from_file(str(file))
            except Exception as error:  # the library raises bare Exception
                raise ModelError(f"{file}: can't be read as a tokenizer ({error})") from error
        else:
            self._backend = _convert_slow_tokenizer(folder)
        self._backend.no_truncation()
        self._backend.no_padding()
        self.special_tokens = _special_tokens(folder, config)  # role -> text, as templates see them
        self.vocab_size = max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        added = self._backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.eos_token_ids = self._find_eos(folder)
        decoder = self._backend.decoder
        self._byte_decoder = None if decoder is None else ByteDecoder.of(decoder.__getstate__())
        self.is_exact_in_bytes = self._byte_decoder is not None and self._byte_decoder.is_exact
        self.num_stripped = 0 if self._byte_decoder is None else self._byte_decoder.num_stripped
        self._bytes: dict[int, bytes] = {}
        self._templates = _read_templates(folder, config)
        self._compiled: dict[str, jinja2.Template] = {}
        self._variables: dict[str, frozenset[str]] = {}  # by template

    @classmethod
    def load(cls, files: ModelFiles) -> Tokenizer:
        """The tokenizer beside a model's weights."""
        return cls(files.path)

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat_template` can be used."""
        return bool(self._templates)

    def chat_template(self, with_tools: bool = False) -> str | None:
        """The source of the template that a conversation (with tools) is rendered by; None for a model without."""
        return self._pick_template(with_tools) if self._templates else None

    def template_variables(self, with_tools: bool = False) -> frozenset[str]:
        """The names that this template reads from outside; none for a model without."""
        import jinja2.meta

        source = self.chat_template(with_tools)
        if source is None:
            return frozenset()
        if source not in self._variables:
            try:
                names = jinja2.meta.find_undeclared_variables(_environment().parse(source))
            except jinja2.TemplateSyntaxError as error:
                raise ModelError(
                    f"the model's chat template is broken, line {error.lineno}: {error.message}"
                ) from error
            self._variables[source] = frozenset(names)
        return self._variables[source]

    def use_chat_template(self, source: str) -> None:
        """Use this template in place of the model's own. RequestError if it is none."""
        import jinja2

        try:
            self._compiled = {source: _environment().from_string(source)}
        except jinja2.TemplateSyntaxError as error:
            hint = f"line {error.lineno}: {error.message}"
            raise RequestError("chat_template", source, "a Jinja template", hint) from None
        self._templates = {"default": source}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; special tokens written out in the text become their ids."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`; ids beyond the vocabulary give nothing. Bytes that are no text become U+FFFD."""
        if self.is_exact_in_bytes:
            joined = b"".join(self.bytes_of(i, skip_special_tokens) for i in ids)
            return without_leading(joined, self.num_stripped).decode("utf-8", errors="replace")
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def bytes_of(self, token_id: int, skip_special_tokens: bool = True) -> bytes:
        """What one token adds to a text, where `is_exact_in_bytes`: texts are these, joined, without the first
        `num_stripped` spaces."""
        if skip_special_tokens and token_id in self.special_ids:
            return b""
        known = self._bytes.get(token_id)
        if known is None:
            spelling = self.id_to_token(token_id) if token_id >= 0 else None
            assert self._byte_decoder is not None
            known = self._bytes[token_id] = b"" if spelling is None else self._byte_decoder.bytes_of(spelling)
        return known

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling of one token (byte-level alphabet and all)."""
        token: str | None = self._backend.id_to_token(token_id)
        return token

    def token_bytes(self) -> list[bytes] | None:
        """The bytes that each token adds to a text, [V]; None for a decoder that doesn't work on bytes."""
        if self._byte_decoder is None:
            return None
        return [self.bytes_of(token, skip_special_tokens=False) for token in range(self.vocab_size)]

    def token_to_id(self, token: str) -> int | None:
        """Id of a token in the vocabulary's own spelling."""
        token_id: int | None = self._backend.token_to_id(token)
        return token_id

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_values: Any,
    ) -> list[int]:
        """Token ids of a conversation. `tools`: JSON schemas. Other keywords are passed to the template.

        Raises RequestError naming `messages` when the model has no template or the template refuses them.
        """
        text = self.render_chat(messages, add_generation_prompt, tools, **template_values)
        return self.encode(text, add_special_tokens=False)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_values: Any,
    ) -> str:
        """The conversation as the text that the model reads (see `apply_chat_template`)."""
        import jinja2

        chat = _plain_messages(messages)
        source = self._pick_template(tools is not None)
        try:
            if source not in self._compiled:
                self._compiled[source] = _environment().from_string(source)
            values = {"documents": None, **self.special_tokens, **_plain(template_values)}
            values.update(messages=chat, tools=_plain(tools), add_generation_prompt=add_generation_prompt)
            return self._compiled[source].render(**values)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(f"the model's chat template is broken, line {error.lineno}: {error.message}") from error
        except (jinja2.TemplateError, TypeError, KeyError, ValueError, OverflowError) as error:
            hint = f"the model's chat template says: {error}"
            raise RequestError("messages", chat, "messages that the chat template accepts", hint) from error

    def _pick_template(self, with_tools: bool) -> str:
        if not self._templates:
            hint = "use generate() with a prompt of your own"
            raise RequestError("messages", "a conversation", "a model with a chat template (this one has none)", hint)
        if with_tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        return self._templates.get("default") or next(iter(self._templates.values()))

    def _find_eos(self, folder: Path) -> frozenset[int]:
        found: set[int] = set()
        for name in ("generation_config.json", "config.json"):
            if (folder / name).exists():
                config = read_json(folder / name)
                value = config.get("eos_token_id", (config.get("text_config") or {}).get("eos_token_id"))
                found.update(int(i) for i in (value if isinstance(value, list) else [value]) if i is not None)
        token = self.special_tokens.get("eos_token")
        token_id = self.token_to_id(token) if token else None
        return frozenset(found | ({token_id} if token_id is not None else set()))


def _convert_slow_tokenizer(folder: Path) -> Any:
    """A folder without tokenizer.json (SentencePiece, tiktoken): let transformers build the same object."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # whatever the missing or broken file leads to
        raise ModelError(f"{folder}: no tokenizer.json, and no tokenizer can be built ({error})") from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"{folder}: {type(tokenizer).__name__} can't be expressed as a tokenizer.json")
    return backend


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    older = folder / "special_tokens_map.json"
    merged = {
        **(read_json(older) if older.exists() else {}),
        **{k: v for k, v in config.items() if v is not None},
    }
    found: dict[str, str] = {}
    for name, value in merged.items():
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str) and name in _SPECIAL_FIELDS:
            found[name] = text
    extra = merged.get("extra_special_tokens") or merged.get("model_specific_special_tokens")
    for name, value in extra.items() if isinstance(extra, dict) else ():
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _read_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Named templates; newer kinds of file win: *.jinja, chat_template.json, tokenizer_config.json."""
    found: dict[str, str] = {}
    value = config.get("chat_template")
    if (folder / "chat_template.json").exists():
        value = read_json(folder / "chat_template.json").get("chat_template", value)
    if isinstance(value, str):
        found["default"] = value
    elif isinstance(value, list):
        found.update({str(t["name"]): str(t["template"]) for t in value})
    elif isinstance(value, dict):
        found.update({str(k): str(v) for k, v in value.items()})
    if (folder / "chat_template.jinja").exists():
        found["default"] = (folder / "chat_template.jinja").read_text("utf-8")
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[file.stem] = file.read_text("utf-8")
    return found


def _plain_messages(messages: object) -> list[dict[str, Any]]:
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence) or not messages:
        raise RequestError("messages", messages, "a list of at least one {'role': ..., 'content': ...}")
    chat = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(f"messages[{index}]", message, "a mapping with 'role' and 'content'")
        # absent rather than None: many templates print the word None
        chat.append({key: value for key, value in _plain(message).items() if value is not None})
    return chat


def _plain(value: Any) -> Any:
    """A copy made of JSON types only, so that a template can reach no object of ours."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RequestError("messages", value, "text without lone surrogates") from None
        return value
    if value is None or isinstance(value, (int, float, bool)):
        return value
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    raise RequestError("messages", value, "JSON values (text, numbers, lists, mappings)")


def _environment() -> jinja2.Environment:
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationTag(jinja2.ext.Extension):
        """`{% generation %}` marks what to train on; for rendering it is just its body."""

        tags = {"generation"}  # noqa: RUF012 (the base class's attribute)

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # jinja's own filter escapes HTML characters, which a model must not see
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment
