"""Draft heads in plain torch: full attention over all entries, no KV cache, nothing of the product's code.

Each layout is a class with `logits(token_ids, states, path)`: the head's logits after committed tokens x_0..x_{n-1}
with the target's states of positions 0..n-2, and the draft tokens of `path`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate(x: Tensor, theta: float, fraction: float = 1.0) -> Tensor:
    """x [L, heads, D]: rotary embedding at positions 0..L-1 of the first `fraction` of each head."""
    width = int(x.shape[-1] * fraction)
    turned, rest = x[..., :width], x[..., width:]
    angles = torch.arange(x.shape[0])[:, None] * theta ** (-torch.arange(0, width, 2) / width)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = turned.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


class Oracle:
    """`config` as in config.json, `tensors` as in the checkpoint, `embed` and `head` [V, H] the target's."""

    def __init__(self, config: dict, tensors: dict[str, Tensor], embed: Tensor, head: Tensor) -> None:
        self.config = config
        self.tensors = {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}
        self.embed = self.tensors.get("embed_tokens.weight", embed)
        self.head = head
        self.eps = config["rms_norm_eps"]
        self.offset = 0.0  # of norm weights

    def t(self, name: str) -> Tensor:
        return self.tensors[f"{name}.weight"]

    def normed(self, x: Tensor, name: str) -> Tensor:
        return norm(x, self.t(name) + self.offset, self.eps)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.t(name), self.tensors.get(f"{name}.bias"))

    def layer(self, stream: Tensor, attn_input: Tensor, prefix: str) -> Tensor:
        c, length = self.config, stream.shape[0]
        heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        dim = c["head_dim"]
        q, k, v = (self.linear(attn_input, f"{prefix}self_attn.{n}_proj") for n in "qkv")
        gate = None
        if q.shape[1] == 2 * heads * dim:
            q, gate = q.view(length, heads, 2 * dim).chunk(2, dim=-1)
        q, k, v = q.reshape(length, heads, dim), k.view(length, kv_heads, dim), v.view(length, kv_heads, dim)
        if f"{prefix}self_attn.q_norm.weight" in self.tensors:
            q, k = self.normed(q, f"{prefix}self_attn.q_norm"), self.normed(k, f"{prefix}self_attn.k_norm")
        theta, fraction = c.get("rope_theta", 10000.0), c.get("partial_rotary_factor", 1.0)
        q, k = rotate(q, theta, fraction), rotate(k, theta, fraction)
        k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q, k) * dim**-0.5
        age = torch.arange(length)[:, None] - torch.arange(length)
        mask = age < 0
        if "sliding_attention" in c.get("layer_types", ()):
            mask |= age >= c["sliding_window"]
        context = torch.einsum("hij,jhd->ihd", scores.masked_fill(mask, -torch.inf).softmax(-1), v)
        if gate is not None:
            context = context * gate.sigmoid()
        stream = stream + self.linear(context.reshape(length, -1), f"{prefix}self_attn.o_proj")
        x = self.normed(stream, f"{prefix}post_attention_layernorm")
        x = F.silu(self.linear(x, f"{prefix}mlp.gate_proj")) * self.linear(x, f"{prefix}mlp.up_proj")
        return stream + self.linear(x, f"{prefix}mlp.down_proj")

    def paired(self, states: Tensor) -> Tensor:
        """What the target's states are to an entry."""
        return states

    def outputs(self, token_ids: list[int], hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Of all entries: what the next entry is paired with, and the logits."""
        raise NotImplementedError

    def logits(self, token_ids: list[int], states: Tensor, path: tuple[int, ...]) -> Tensor:
        tokens, hidden = list(token_ids[1:]), self.paired(states)
        carried, logits = self.outputs(tokens, hidden)
        for token in path:
            hidden = torch.cat([hidden, carried[-1:]])
            tokens.append(token)
            carried, logits = self.outputs(tokens, hidden)
        return logits[-1]


class Eagle3(Oracle):
    def paired(self, states: Tensor) -> Tensor:
        """states [L, taps, H]"""
        if self.config.get("fc_norm"):
            states = torch.stack([self.normed(states[:, i], f"fc_norm.{i}") for i in range(states.shape[1])], 1)
        states = states.flatten(1)
        if self.config.get("norm_before_fc"):
            states = self.normed(states, "input_norm")
        return self.linear(states, "fc")

    def outputs(self, token_ids: list[int], hidden: Tensor) -> tuple[Tensor, Tensor]:
        p = "midlayer." if "midlayer.hidden_norm.weight" in self.tensors else "layers.0."
        normed = self.normed(hidden, f"{p}hidden_norm")
        attn_input = torch.cat([self.normed(self.embed[token_ids], f"{p}input_layernorm"), normed], dim=-1)
        stream = self.layer(normed if self.config.get("norm_before_residual") else hidden, attn_input, p)
        final = self.normed(stream, "norm")
        head = self.tensors.get("lm_head.weight", self.head)
        return final if self.config.get("norm_output") else stream, F.linear(final, head)


class Eagle1(Oracle):
    def outputs(self, token_ids: list[int], hidden: Tensor) -> tuple[Tensor, Tensor]:
        stream = self.linear(torch.cat([self.embed[token_ids], hidden], dim=-1), "fc")
        for index in range(self.config["num_hidden_layers"]):
            name = f"layers.{index}.input_layernorm"
            stream = self.layer(stream, self.normed(stream, name) if index else stream, f"layers.{index}.")
        return stream, F.linear(stream, self.head)


class Mtp(Oracle):
    """`names`: embedding norm, hidden norm, projection, final norm, layer prefix."""

    def __init__(self, *args, names: tuple[str, ...], offset: float, is_hidden_first: bool, carries_normed: bool):
        super().__init__(*args)
        self.names, self.offset = names, offset
        self.is_hidden_first, self.carries_normed = is_hidden_first, carries_normed

    def outputs(self, token_ids: list[int], hidden: Tensor) -> tuple[Tensor, Tensor]:
        embed_norm, hidden_norm, projection, final_norm, prefix = self.names
        halves = [self.normed(self.embed[token_ids], embed_norm), self.normed(hidden, hidden_norm)]
        if self.is_hidden_first:
            halves.reverse()
        stream = self.linear(torch.cat(halves, dim=-1), projection)
        stream = self.layer(stream, self.normed(stream, f"{prefix}input_layernorm"), prefix)
        final = self.normed(stream, final_norm)
        return final if self.carries_normed else stream, F.linear(final, self.head)
