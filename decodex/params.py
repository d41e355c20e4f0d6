"""SamplingParams: what a request asks of the row pipeline. Owned by the user, frozen, validated on construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from decodex.checks import Bias, Flag, Int, Number, OneOf, Processors, Texts, TokenIds
from decodex.definition import FILE_OR_TEXT, Refusal, definition, option, run_checks
from decodex.errors import RequestError
from decodex.speculative_config import Prediction, Speculative
from decodex.structured_outputs import StructuredOutputs, StructuredOutputsParams

__all__ = ["BESIDE_WHOLE_OUTPUT", "SamplingParams"]

MAX_CHOICES = 128
MAX_WORDS = 256  # stop strings are fewer: 64
MAX_WORD_LENGTH = 256
DEFAULT_BREAKERS = ("\n", ":", '"', "*")

_MIROSTAT = Refusal(
    "Mirostat steers a state from token to token, so that a token would depend on how the earlier ones were drawn "
    "and not on the row alone; use min_p or top_n_sigma",
    (None, 0, 0.0),
)
_BEAMS = Refusal(
    "beam search keeps sequences that were not drawn and reorders them, which no row pipeline, seed or grammar can "
    "replay; use n with cumulative_logprob",
    (None, False, 0, 1),
)
_GUIDED = Refusal("write structured_outputs=StructuredOutputsParams(json=..., regex=..., choice=... or grammar=...)")
# what would cut, or add to, an output that is a member of its constraint as a whole
BESIDE_WHOLE_OUTPUT = ("stop", "stop_token_ids", "include_stop_str_in_output", "repetition_stop", "max_thinking_tokens")


@definition
class SamplingParams:
    """How the tokens of one request are chosen.

    Every spelling of "off" (None, and the values that docs/parameters.md lists) is the same as absent. Raises
    `RequestError` naming the field. docs/parameters.md has each one's formula and place in the row pipeline.
    """

    n: int = option(
        default=1,
        help="number of choices for each prompt; choice k draws from a seed derived from the request's",
        check=Int(1, MAX_CHOICES, optional=False),
        step="8 draw",
        formula="s_0 = seed, s_k = hash(seed, k)",
    )
    seed: int | None = option(
        default=None,
        help="64-bit seed; drawn from the operating system and returned when absent",
        check=Int(-(2**63), 2**64 - 1),
        step="8 draw",
        formula="token = argmax(logit/T + G(seed, position, token)), G = -log(-log u), u from Philox-4x32-10",
    )
    temperature: float = option(
        default=1.0,
        help="logits are divided by it; 0 is greedy (arg-max)",
        check=Number(0.0, optional=False),
        step="6 temperature",
        formula="x = (logit - max) / T; T = 0: arg-max, step 7 is skipped",
    )
    dynatemp_range: float | None = option(
        default=None,
        help="let the temperature follow the entropy, this far around `temperature`; 0 is off",
        check=Number(0.0, off_values=(0.0,)),
        step="6 temperature",
        formula="T' = lo + (hi - lo) (H / log count)^exponent, lo = max(0, T - range), hi = T + range, H the entropy "
        "of softmax(logit); T = 0 stays greedy",
    )
    dynatemp_exponent: float = option(
        default=1.0,
        help="exponent of the entropy in dynamic temperature",
        check=Number(0.0, 100.0, open_low=True, optional=False),
        step="6 temperature",
        formula="see dynatemp_range",
    )
    top_n_sigma: float | None = option(
        default=None,
        help="keep tokens whose logit is within this many standard deviations of the best; 0 or -1 is off",
        check=Number(0.0, open_low=True, off_values=(0.0, -1.0)),
        step="7 truncation",
        formula="keep logit >= max - n sigma, sigma over the finite logits",
    )
    min_p: float | None = option(
        default=None,
        help="drop tokens less likely than min_p times the most likely one; 0 is off",
        check=Number(0.0, 1.0, off_values=(0.0,)),
        step="7 truncation",
        formula="keep x >= log(min_p)",
    )
    top_k: int | None = option(
        default=None,
        help="keep the k most likely tokens; None, 0 or -1 is off",
        check=Int(1, off_values=(0, -1)),
        step="7 truncation",
        formula="exactly k, ties to the lower token id",
    )
    typical_p: float | None = option(
        default=None,
        help="keep the tokens whose surprise is closest to the entropy, up to this mass; 1.0 is off",
        check=Number(0.0, 1.0, open_low=True, off_values=(1.0,)),
        step="7 truncation",
        formula="order by |-log p - H|, smallest prefix with mass >= typical_p",
    )
    epsilon_cutoff: float | None = option(
        default=None,
        help="drop tokens less likely than this; 0 is off",
        check=Number(0.0, 1.0, off_values=(0.0,)),
        step="7 truncation",
        formula="drop p < epsilon (the most likely token stays)",
    )
    eta_cutoff: float | None = option(
        default=None,
        help="drop tokens less likely than a bound that falls with the entropy; 0 is off",
        check=Number(0.0, 1.0, off_values=(0.0,)),
        step="7 truncation",
        formula="drop p < min(eta, sqrt(eta) exp(-H)) (the most likely token stays)",
    )
    top_p: float | None = option(
        default=None,
        help="keep the smallest set of most likely tokens with this mass; 1.0 is off",
        check=Number(0.0, 1.0, open_low=True, off_values=(1.0,)),
        step="7 truncation",
        formula="smallest prefix with mass >= top_p",
    )
    xtc_probability: float | None = option(
        default=None,
        help="how often XTC drops the most likely tokens; 0 is off",
        check=Number(0.0, 1.0, off_values=(0.0,)),
        step="7 truncation",
        formula="if u(seed, position) < xtc_probability: of the tokens with p >= xtc_threshold keep the least likely "
        "(end of sequence and newline are neither counted nor dropped)",
    )
    xtc_threshold: float = option(
        default=0.1,
        help="probability from which on XTC counts a token as likely",
        check=Number(0.0, 1.0, optional=False),
        step="7 truncation",
        formula="see xtc_probability",
    )
    repetition_penalty: float | None = option(
        default=None,
        help="make tokens of the prompt and the output less likely; 1.0 is off, below 1 more likely",
        check=Number(0.01, 100.0, off_values=(1.0,)),
        step="3 penalties",
        formula="logit > 0: logit / r, else logit * r, for each token in prompt + output",
    )
    frequency_penalty: float | None = option(
        default=None,
        help="make tokens of the output less likely, by how often they occur; 0 is off",
        check=Number(-2.0, 2.0, off_values=(0.0,)),
        step="3 penalties",
        formula="logit - f * count in the output",
    )
    presence_penalty: float | None = option(
        default=None,
        help="make tokens of the output less likely, once; 0 is off",
        check=Number(-2.0, 2.0, off_values=(0.0,)),
        step="3 penalties",
        formula="logit - p * (count in the output > 0)",
    )
    penalty_last_n: int | None = option(
        default=None,
        help="the three penalties look at the last n tokens only; -1 is all",
        check=Int(1, off_values=(-1,), hint="leave the penalties out to switch them off"),
        step="3 penalties",
        formula="counts over the last n tokens of prompt + output",
    )
    dry_multiplier: float | None = option(
        default=None,
        help="DRY: penalize tokens that would prolong a repetition of earlier text; 0 is off",
        check=Number(0.0, 100.0, off_values=(0.0,)),
        step="3 penalties",
        formula="logit - multiplier * base^(m - allowed_length) if m >= allowed_length, m the longest end of prompt + "
        "output that this token followed before",
    )
    dry_base: float = option(
        default=1.75,
        help="DRY: growth of the penalty with each repeated token",
        check=Number(1.0, 100.0, optional=False),
        step="3 penalties",
        formula="see dry_multiplier; the power stays below the largest float",
    )
    dry_allowed_length: int = option(
        default=2,
        help="DRY: repetitions shorter than this are free",
        check=Int(1, optional=False),
        step="3 penalties",
        formula="see dry_multiplier",
    )
    dry_sequence_breakers: tuple[str, ...] | list[str] | str | None = option(
        default=DEFAULT_BREAKERS,
        help="DRY: no repetition reaches across these texts",
        metavar="STR",
        check=Texts(MAX_WORDS, MAX_WORD_LENGTH, is_shown=True),
        step="3 penalties",
        formula="a token in which a breaker ends resets m to 0; a token that contains one is not penalized",
    )
    logit_bias: dict[int, float] | None = option(
        default=None,
        help="added to the logits of token ids; -inf (in JSON -Infinity) bans",
        check=Bias(),
        metavar="JSON",
        step="2 masks",
        formula="logit + bias",
    )
    allowed_token_ids: tuple[int, ...] | list[int] | None = option(
        default=None,
        help="only these tokens",
        metavar="ID",
        check=TokenIds(may_be_empty=False, absent=None),
        step="2 masks",
        formula="-inf for all others",
    )
    bad_words: tuple[str, ...] | list[str] | str | None = option(
        default=None,
        help="texts that the output never contains, however it is cut into tokens; at most 8192 bytes together",
        metavar="STR",
        check=Texts(MAX_WORDS, MAX_WORD_LENGTH, is_shown=True),
        step="2 masks",
        formula="-inf for each token that would complete one, by the bytes of the output so far",
    )
    no_repeat_ngram_size: int | None = option(
        default=None,
        help="no n tokens in a row occur twice in prompt and output; 0 is off",
        check=Int(1, off_values=(0,)),
        step="2 masks",
        formula="-inf for each token that would complete an n-gram of prompt + output",
    )
    min_tokens: int = option(
        default=0,
        help="no end of sequence, stop token or stop string within this many tokens; at most max_tokens",
        check=Int(0, optional=False),
        step="2 masks",
        formula="-inf for end of sequence and stop_token_ids",
    )
    max_thinking_tokens: int | None = option(
        default=None,
        help="most tokens between <think> and </think>; then the end marker is forced; -1 is off",
        check=Int(0, off_values=(-1,)),
        step="2 masks",
        formula="-inf for all but the end marker's next token, once the budget is spent",
    )
    logits_processors: tuple[Any, ...] | list[Any] | None = option(
        default=None,
        help="custom logits processors, in order",
        cli=False,
        check=Processors(),
        step="4 processors",
        formula="see decodex/processors.py",
    )
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = option(
        default=None,
        help="what the output must be: a JSON schema, regex, choice, grammar or structural tag",
        cli=False,
        check=StructuredOutputs(),
        step="5 grammar",
        formula="-inf for each token after which the text can't be completed any more",
    )
    speculative: Any = option(
        default=None,
        help="guess tokens ahead: false, true, or a mapping of docs/speculation.md's fields; default is the engine's",
        metavar="JSON",
        check=Speculative(),
        step="speculation",
        formula="the tokens are the same with and without (verification coupled)",
    )
    prediction: Any = option(
        default=None,
        help="text (or token ids) that the output is expected to be much like; wrong predictions only cost time",
        metavar=FILE_OR_TEXT,
        check=Prediction(),
        step="speculation",
        formula="the tokens are the same with and without (verification coupled)",
    )
    max_tokens: int | None = option(
        default=16,
        help="most tokens to generate; None is up to the context length",
        check=Int(1),
        step="end",
    )
    stop: tuple[str, ...] | list[str] | str | None = option(
        default=None,
        help="strings that end the text where they appear; one that ends within min_tokens stays in the text",
        metavar="STR",
        check=Texts(64, 1024),
        step="end",
    )
    stop_token_ids: tuple[int, ...] | list[int] | None = option(
        default=None, help="token ids that end the sequence", metavar="ID", check=TokenIds(), step="end"
    )
    include_stop_str_in_output: bool = option(
        default=False,
        help="keep the stop string or stop token in the text (a special token only without skip_special_tokens)",
        check=Flag(),
        step="end",
    )
    ignore_eos: bool = option(default=False, help="generate past the model's end of sequence", check=Flag(), step="end")
    repetition_stop: int | None = option(
        default=None,
        help="end the output when its last tokens are one pattern this many times, after min_tokens; 0 is off, 4 is a "
        "good value",
        check=Int(2, off_values=(0,)),
        step="end",
        formula="the last max(count * period, span) output tokens have the period; stop_reason is 'repetition'",
    )
    repetition_stop_span: int = option(
        default=32,
        help="a repetition that is shorter than this many tokens does not end the output",
        check=Int(1, optional=False),
        step="end",
        formula="see repetition_stop",
    )
    repetition_stop_period: int = option(
        default=64,
        help="longest pattern that repetition_stop looks for, in tokens",
        check=Int(1, 4096, optional=False),
        step="end",
        formula="see repetition_stop",
    )
    logprobs: int | None = option(
        default=None,
        help="return the chosen token's log-probability and this many most likely ones; -1 is all tokens that the "
        "tokenizer has",
        check=Int(-1),
        step="output",
    )
    prompt_logprobs: int | None = option(
        default=None,
        help="the same for the tokens of the prompt, always raw; -1 is all",
        check=Int(-1),
        step="output",
    )
    logprob_token_ids: tuple[int, ...] | list[int] | None = option(
        default=None,
        help="return the log-probabilities of these tokens too, wherever the chosen one's is",
        metavar="ID",
        check=TokenIds(128),
        step="output",
    )
    logprobs_mode: str = option(
        default="raw",
        help="raw: of the model's own logits; processed: of what is kept after step 7",
        choices=("raw", "processed"),
        check=OneOf(("raw", "processed")),
        step="output",
        formula="log softmax over the vocabulary, or over the kept tokens of logit/T (-inf for the others)",
    )
    skip_special_tokens: bool = option(
        default=True, help="leave special tokens out of the text", check=Flag(), step="output"
    )

    refused: ClassVar[Mapping[str, Refusal]] = {
        **dict.fromkeys(("mirostat", "mirostat_mode", "mirostat_tau", "mirostat_eta"), _MIROSTAT),
        **dict.fromkeys(("use_beam_search", "num_beams", "beam_width", "num_beam_groups"), _BEAMS),
        **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar", "response_format"), _GUIDED),
        "best_of": Refusal(
            "best_of ranks by a likelihood that no parameter describes and throws the rest away; ask for n choices "
            "and rank them by cumulative_logprob",
            (None, 1),
        ),
    }

    def __post_init__(self) -> None:
        run_checks(self)
        if self.seed is not None:
            object.__setattr__(self, "seed", self.seed % 2**64)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError("min_tokens", self.min_tokens, f"at most max_tokens = {self.max_tokens}")
        if self.logprob_token_ids and self.logprobs is None:
            object.__setattr__(self, "logprobs", 0)
        if self.whole_output is not None:
            self._check_beside_whole_output(f"structured_outputs.{self.whole_output.kind}")

    def _check_beside_whole_output(self, constraint: str) -> None:
        for name in BESIDE_WHOLE_OUTPUT:
            value = getattr(self, name)
            if value is not None and value is not False and value != ():
                hint = "the whole output is a member of the constraint, from its first token to its last"
                raise RequestError(name, value, f"to be absent beside {constraint}", hint)

    @property
    def whole_output(self) -> StructuredOutputsParams | None:
        """The constraint, where it describes the whole output."""
        constraint = self.constrained
        return None if constraint is None or constraint.kind == "structural_tag" else constraint

    @property
    def constrained(self) -> StructuredOutputsParams | None:
        """`structured_outputs`, which is no mapping once it is checked."""
        constraint = self.structured_outputs
        return constraint if isinstance(constraint, StructuredOutputsParams) else None

    @property
    def has_penalties(self) -> bool:
        """Whether a repetition, frequency or presence penalty is on."""
        penalties: Sequence[float | None] = (
            self.repetition_penalty,
            self.frequency_penalty,
            self.presence_penalty,
        )
        return any(value is not None for value in penalties)
