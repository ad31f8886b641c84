"""A decoder-only transformer in plain PyTorch, with the tensors of Causeway's own model.

Names and shapes are those of Hugging Face's LlamaForCausalLM and, with qk_norm, Qwen3ForCausalLM:
RMSNorm, RoPE, grouped queries, SwiGLU, and an embedding that is the head, too. So a site that trains this
class and a causeway-worker can share a run.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping

import torch
import torch.nn.functional as F
from torch import nn

_VOCABULARY_MULTIPLE = 128


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of the model; the defaults are Causeway's preset tiny-1m, for bytes."""

    vocabulary_size: int = 256
    layers: int = 6
    width: int = 128
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 32
    mlp_width: int = 320
    qk_norm: bool = True
    rope_theta: float = 10000.0
    norm_epsilon: float = 1e-5
    sequence_length: int = 256

    @classmethod
    def of_run(cls, config: Mapping[str, Any]) -> "Shape":
        """The shape that a run's configuration (`causeway.describe`) gives its `model`.

        Raises:
            ValueError: the model has what this class has not.
        """
        model = config["model"]
        has = [name for name in ("untied_head", "qkv_bias", "output_bias", "mlp_bias", "layer_norm",
                                 "learned_positions", "rope_scaling") if model.get(name)]
        if model.get("mlp", "SWIGLU") != "SWIGLU":
            has.append(f"mlp {model['mlp']}")
        if has:
            raise ValueError("this example has a tied head, SwiGLU, RMSNorm and plain RoPE; the "
                             f"run's model asks for {', '.join(has)}")
        return cls(**{field.name: model[field.name] for field in dataclasses.fields(cls)
                      if field.name in model})


def rope_table(shape: Shape) -> torch.Tensor:
    """[2, sequence_length, head_dim]: cosine and sine, in the half-split layout."""
    half = torch.arange(shape.head_dim // 2, dtype=torch.float64)
    frequencies = shape.rope_theta ** (-2.0 * half / shape.head_dim)
    angles = torch.outer(torch.arange(shape.sequence_length, dtype=torch.float64), frequencies)
    angles = torch.cat([angles, angles], dim=-1)
    return torch.stack([angles.cos(), angles.sin()]).float()


def rotate(heads: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
    """RoPE on [batch, heads, length, head_dim]."""
    first, second = heads.chunk(2, dim=-1)
    return heads * rope[0] + torch.cat([-second, first], dim=-1) * rope[1]


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.width, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.width, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.width, shape.kv_heads * shape.head_dim, bias=False)
        self.q_norm = self.k_norm = nn.Identity()
        if shape.qk_norm:
            self.q_norm = nn.RMSNorm(shape.head_dim, eps=shape.norm_epsilon)
            self.k_norm = nn.RMSNorm(shape.head_dim, eps=shape.norm_epsilon)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.width, bias=False)

    def forward(self, x: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        def split(y: torch.Tensor) -> torch.Tensor:
            return y.unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)

        queries = rotate(self.q_norm(split(self.q_proj(x))), rope)
        keys = rotate(self.k_norm(split(self.k_proj(x))), rope)
        values = split(self.v_proj(x))
        share = self.shape.heads // self.shape.kv_heads
        mixed = F.scaled_dot_product_attention(
            queries, keys.repeat_interleave(share, 1), values.repeat_interleave(share, 1),
            is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.mlp_width, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.mlp_width, bias=False)
        self.down_proj = nn.Linear(shape.mlp_width, shape.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        self.mlp = Mlp(shape)

    def forward(self, x: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        rows = -(-shape.vocabulary_size // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
        self.embed_tokens = nn.Embedding(rows, shape.width)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)


class SmallTransformer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        self.register_buffer("rope", rope_table(shape), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [batch, length, vocabulary_size] of tokens [batch, length]."""
        x = self.model.embed_tokens(tokens)
        rope = self.rope[:, :tokens.shape[1]]
        for block in self.model.layers:
            x = block(x, rope)
        head = self.model.embed_tokens.weight[:self.shape.vocabulary_size]
        return F.linear(self.model.norm(x), head)

    def loss(self, windows: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy, nats per token, of windows [batch, length + 1]."""
        logits = self(windows[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def continue_text(model: SmallTransformer, tokens: torch.Tensor, count: int,
                  temperature: float = 0.7) -> torch.Tensor:
    """`tokens` [length] and `count` more that the model draws."""
    for _ in range(count):
        window = tokens[-model.shape.sequence_length:]
        logits = model(window.unsqueeze(0))[0, -1] / temperature
        tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1)])
    return tokens
