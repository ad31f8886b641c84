"""Trains a shape of bench in PyTorch, as people do: torch.compile, bf16 autocast over fp32 weights,
fused AdamW, scaled_dot_product_attention. Prints one JSON object.

usage: torch_baseline.py SETTINGS.json, with {"model": ModelConfig as JSON, "micro_batch", "batch",
"steps"}
"""

import json
import math
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, model):
        super().__init__()
        width, heads, kv_heads = model["width"], model["heads"], model["kv_heads"]
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, model["head_dim"]
        self.gated = model["mlp"] == "SWIGLU"
        qkv_bias, mlp_bias = model["qkv_bias"], model["mlp_bias"]
        self.attention_norm = make_norm(model)
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.head_dim, bias=qkv_bias)
        self.o = nn.Linear(heads * self.head_dim, width, bias=model["output_bias"])
        self.mlp_norm = make_norm(model)
        inputs = model["mlp_width"] * (2 if self.gated else 1)
        self.mlp_in = nn.Linear(width, inputs, bias=mlp_bias)
        self.down = nn.Linear(model["mlp_width"], width, bias=mlp_bias)
        self.qk_norm = model["qk_norm"]
        if self.qk_norm:
            self.q_norm = nn.RMSNorm(self.head_dim, eps=model["norm_epsilon"])
            self.k_norm = nn.RMSNorm(self.head_dim, eps=model["norm_epsilon"])

    def forward(self, x, cosine, sine):
        batch, length, _ = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, -1, self.head_dim)
        q, k, v = qkv.transpose(1, 2).split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if cosine is not None:
            q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                             enable_gqa=self.heads != self.kv_heads)
        x = x + self.o(out.transpose(1, 2).reshape(batch, length, -1))
        hidden = self.mlp_in(self.mlp_norm(x))
        if self.gated:
            gate, up = hidden.chunk(2, dim=-1)
            hidden = F.silu(gate) * up
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        return x + self.down(hidden)


class Transformer(nn.Module):
    def __init__(self, model, residual=torch.bfloat16):
        """residual: type of the residual stream, which in our worker is bf16."""
        super().__init__()
        self.model = model
        self.residual = residual
        vocabulary = (model["vocabulary_size"] + 127) // 128 * 128
        self.embedding = nn.Embedding(vocabulary, model["width"])
        self.positions = (nn.Embedding(model["learned_positions"], model["width"])
                          if model["learned_positions"] else None)
        self.blocks = nn.ModuleList(Block(model) for _ in range(model["layers"]))
        self.norm = make_norm(model)
        self.head = nn.Linear(model["width"], vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                ends_a_half = name.endswith(("o.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * model["layers"])
                                if ends_a_half else 0.02)
        if not model["untied_head"]:
            self.head.weight = self.embedding.weight
        half = model["head_dim"] // 2
        frequencies = model["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(model["sequence_length"], dtype=torch.float64),
                             frequencies)
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())

    def forward(self, inputs, targets=None):
        """The loss; without targets the logits."""
        x = self.embedding(inputs).to(self.residual)
        cosine, sine = self.cosine.to(x.dtype), self.sine.to(x.dtype)
        if self.positions is not None:
            x = x + self.positions.weight[:inputs.shape[1]].to(self.residual)
            cosine = sine = None
        for block in self.blocks:
            x = block(x, cosine, sine)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def run_tensors(self):
        """Of each parameter, without biases and positions: its path, and the run's tensors that it is made of,
        by their names (common/params/tensor_table.h) and in their order."""
        model = self.model
        keys = model["kv_heads"] * model["head_dim"]
        rows = {3: [model["heads"] * model["head_dim"], keys, keys], 2: [model["mlp_width"]] * 2}
        paths = {"embedding": ["model.embed_tokens"]}
        for index, block in enumerate(self.blocks):
            names = {"attention_norm": ["input_layernorm"],
                     "qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], "o": ["self_attn.o_proj"]}
            if block.qk_norm:
                names |= {"q_norm": ["self_attn.q_norm"], "k_norm": ["self_attn.k_norm"]}
            names |= {"mlp_norm": ["post_attention_layernorm"],
                      "mlp_in": ["mlp.gate_proj", "mlp.up_proj"] if block.gated else ["mlp.up_proj"],
                      "down": ["mlp.down_proj"]}
            paths |= {f"blocks.{index}.{module}": [f"model.layers.{index}.{part}" for part in parts]
                      for module, parts in names.items()}
        paths["norm"] = ["model.norm"]
        if model["untied_head"]:
            paths["head"] = ["lm_head"]
        for path, names in paths.items():
            weight = self.get_parameter(f"{path}.weight")
            parts = weight.detach().split(rows[len(names)]) if len(names) > 1 else [weight]
            yield f"{path}.weight", {f"{name}.weight": part for name, part in zip(names, parts)}


def make_norm(model):
    kind = nn.LayerNorm if model["layer_norm"] else nn.RMSNorm
    return kind(model["width"], eps=model["norm_epsilon"])


def rotate(x, cosine, sine):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def make_step(model, compiled, optimizer, settings, device):
    shape = (settings["micro_batch"], model["sequence_length"])
    passes = settings["batch"] // settings["micro_batch"]
    tokens = torch.randint(model["vocabulary_size"], (shape[0], shape[1] + 1), device=device)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step():
        for _ in range(passes):
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = compiled(inputs, targets) / passes
            loss.backward()
        torch.nn.utils.clip_grad_norm_(
            [p for group in optimizer.param_groups for p in group["params"]], 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def measure(settings):
    model = settings["model"]
    torch.manual_seed(1)
    device = torch.device("cuda")
    torch.set_float32_matmul_precision("high")
    begin = time.monotonic()
    transformer = Transformer(model).to(device)
    optimizer = torch.optim.AdamW(transformer.parameters(), lr=1e-4, betas=(0.9, 0.95),
                                  fused=True)
    step = make_step(model, torch.compile(transformer), optimizer, settings, device)
    step()
    torch.cuda.synchronize()
    compile_seconds = time.monotonic() - begin
    step()
    seconds = []
    for _ in range(settings["steps"]):
        torch.cuda.synchronize()
        begin = time.monotonic()
        step()
        torch.cuda.synchronize()
        seconds.append(time.monotonic() - begin)
    median = statistics.median(seconds)
    return {"seconds_per_step": median, "seconds": seconds,
            "tokens_per_second": settings["batch"] * model["sequence_length"] / median,
            "micro_batch": settings["micro_batch"], "compile_seconds": compile_seconds,
            "peak_gb": torch.cuda.max_memory_allocated() / 1e9, "torch": torch.__version__}


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        settings = json.load(file)
    while True:
        try:
            result = measure(settings)
            break
        except torch.OutOfMemoryError:  # A micro-batch that our worker fits may be too much here.
            if settings["micro_batch"] % 2 != 0:
                raise
            settings["micro_batch"] //= 2
        torch.cuda.empty_cache()
        torch.compiler.reset()
    print("\n" + json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
