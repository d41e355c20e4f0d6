"""Multi-token-prediction modules, as DeepSeek-V3, Qwen3-Next and MiMo ship them inside the target's checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from decodex.kernels.norm import rms_norm
from decodex.spec.decoder_layer import DecoderLayer, Entries, LayerConfig, Rotary
from decodex.spec.head import load_embedding, load_vocabulary
from decodex.spec.head_weights import HeadError, HeadWeights
from decodex.spec.target import StepTensors, TargetParts

__all__ = ["MtpHead", "MtpLayout", "mtp_layout"]


@dataclass(frozen=True)
class MtpLayout:
    """Where the tensors of the first module are, and what the layouts differ in."""

    name: str
    prefix: str  # of all its tensors
    embed_norm: str
    hidden_norm: str
    projection: str
    final_norm: str
    layer: str  # prefix of its decoder layer
    copies: tuple[str, str]  # embedding and output layer where the checkpoint repeats the target's
    token_map: str = ""  # ours: the tokens that are drafted (target id - draft id), where that is not all
    norm_offset: float = 0.0  # added to norm weights
    is_hidden_first: bool = False  # the projection reads [hidden; embedding]
    carries_normed: bool = False  # the next entry is paired with the output after the final norm


def mtp_layout(names: Mapping[str, Any] | HeadWeights, num_layers: int) -> MtpLayout:
    """The layout whose tensors are there. `num_layers`: of the target. HeadError without any."""
    deepseek = f"model.layers.{num_layers}."
    layouts = (
        MtpLayout(
            name="DeepSeek",
            prefix=deepseek,
            embed_norm=f"{deepseek}enorm.weight",
            hidden_norm=f"{deepseek}hnorm.weight",
            projection=f"{deepseek}eh_proj",
            final_norm=f"{deepseek}shared_head.norm.weight",
            layer=deepseek,
            copies=(f"{deepseek}embed_tokens.weight", f"{deepseek}shared_head.head.weight"),
            token_map=f"{deepseek}shared_head.d2t",
        ),
        MtpLayout(
            name="Qwen3-Next",
            prefix="mtp.",
            embed_norm="mtp.pre_fc_norm_embedding.weight",
            hidden_norm="mtp.pre_fc_norm_hidden.weight",
            projection="mtp.fc",
            final_norm="mtp.norm.weight",
            layer="mtp.layers.0.",
            copies=("mtp.embed_tokens.weight", "mtp.lm_head.weight"),
            norm_offset=1.0,
            carries_normed=True,
        ),
        MtpLayout(
            name="MiMo",
            prefix="model.mtp_layers.0.",
            embed_norm="model.mtp_layers.0.token_layernorm.weight",
            hidden_norm="model.mtp_layers.0.hidden_layernorm.weight",
            projection="model.mtp_layers.0.input_proj",
            final_norm="model.mtp_layers.0.final_layernorm.weight",
            layer="model.mtp_layers.0.",
            copies=("model.mtp_layers.0.embed_tokens.weight", "model.mtp_layers.0.lm_head.weight"),
            is_hidden_first=True,
            carries_normed=True,
        ),
    )
    for layout in layouts:
        if f"{layout.projection}.weight" in names:
            return layout
    wanted = ", ".join(f"{layout.projection}.weight ({layout.name})" for layout in layouts)
    raise HeadError(f"no multi-token-prediction module: none of the tensors {wanted}")


class MtpHead:
    """projection([norm(embedding); norm(hidden)]), a decoder layer, a final norm, the target's head.

    The first module serves every depth; those for later depths are not read."""

    shift = 1
    taps: tuple[int, ...] = ()
    needs_hidden = True

    def __init__(
        self,
        config: Mapping[str, Any],
        weights: HeadWeights,
        target: TargetParts,
        layout: MtpLayout,
        carries_normed: bool | None = None,
    ) -> None:
        """`config`: the checkpoint's config.json; `weights`: the tensors below the layout's prefix; `carries_normed`:
        None for what the layout's authors do. HeadError names what is missing, unknown or misshapen."""
        layer = LayerConfig.read(config, target.num_layers)
        hidden, offset = layer.hidden_size, layout.norm_offset
        if hidden != target.hidden_size:
            raise HeadError(f"config.json: hidden_size is {hidden}, the target's is {target.hidden_size}")
        self.max_position = target.max_position
        self.kv_layers = [layer.kv_layer]
        self._eps, self._is_hidden_first = layer.rms_norm_eps, layout.is_hidden_first
        self._carries_normed = layout.carries_normed if carries_normed is None else carries_normed
        self._embed_norm = weights.vector(layout.embed_norm, hidden, offset)
        self._hidden_norm = weights.vector(layout.hidden_norm, hidden, offset)
        self._projection = weights.linear([layout.projection], [hidden], 2 * hidden)
        self._input_norm = weights.vector(f"{layout.layer}input_layernorm.weight", hidden, offset)
        self._layer = DecoderLayer(weights, layout.layer, layer, norm_offset=offset)
        final_norm = weights.vector(layout.final_norm, hidden, offset)
        embedding, output = layout.copies
        self._embed = load_embedding(weights, embedding, hidden, target)
        self.token_map = load_vocabulary(weights, config, target, layout.token_map)
        self._layer.end_with(final_norm, self._load_output(weights, target, output, hidden))
        weights.refuse_untaken()
        self._rotary = Rotary(target.rope_frequencies(config), weights.device)

    def _load_output(
        self, weights: HeadWeights, target: TargetParts, name: str, hidden: int
    ) -> Callable[[Tensor], Tensor]:
        """The output layer: the checkpoint's copy or the target's, and of it the rows that are drafted."""
        if name in weights:
            rows = weights.take_weight(name, (target.vocab_size, hidden))
            return weights.pack(rows if self.token_map is None else rows[self.token_map.to(rows.device)])
        return target.head if self.token_map is None else weights.pack(target.head_rows(self.token_map))

    def inputs(self, step: StepTensors, rows: Tensor) -> Tensor:
        """The target's hidden states, [R, H]."""
        assert step.hidden is not None, "an MTP module needs the target's hidden states"
        return step.hidden.index_select(0, rows)

    def forward(
        self, token_ids: Tensor, hidden: Tensor | None, entries: Entries, step: StepTensors
    ) -> tuple[Tensor, Tensor]:
        """See Head."""
        assert hidden is not None, "an MTP entry is paired with a hidden state"
        eps, width = self._eps, hidden.shape[1]
        paired = hidden.new_empty(hidden.shape[0], 2 * width)
        first, second = paired[:, :width], paired[:, width:]
        rms_norm(self._embed(token_ids), self._embed_norm, eps, second if self._is_hidden_first else first)
        rms_norm(hidden, self._hidden_norm, eps, first if self._is_hidden_first else second)
        stream = self._projection(paired)
        pieces = ((stream, self._input_norm),)
        cos_sin = self._rotary.table(entries.num_positions)
        stream, normed, logits = self._layer.whole(stream, pieces, entries, cos_sin, step.kv_k[0], step.kv_v[0])
        return normed if self._carries_normed else stream, logits
