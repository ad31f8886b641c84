#!/usr/bin/python3
"""Writes the stored fixtures of pytorch_test: small transformers trained for 20 steps by PyTorch.

    /usr/bin/python3 tests/reference/pytorch/make_fixture.py [FOLDER]

Needs Debian's python3-torch (1.13); the test itself needs only what this wrote. Everything is
computed in double precision by autograd, from this folder's own reading of the model and the
optimizers, so that the fixture carries no rounding error worth mentioning.

NAME.json: the run's configuration as textproto, the tensors and their places in NAME.bin, the
learning curve and gradient norms of each optimizer. NAME.bin, little endian: initial weights
(float32), gradients of step 1 (float32), tokens (int32 [steps, sequences, length + 1]).
"""

import json
import math
import pathlib
import sys

import torch

STEPS = 20
SCHEDULE_STEPS = 40
WARMUP_STEPS = 5
FINAL_FRACTION = 0.1
SEQUENCES = 4
LENGTH = 16
VOCABULARY = 100
PADDED = 128
BETA1, BETA2, EPSILON = 0.9, 0.99, 1e-8
WEIGHT_DECAY = 0.05
LEARNING_RATE = 3e-3
MUON_LEARNING_RATE = 0.02
MUON_MOMENTUM = 0.95

SHAPES = {
    "swiglu_grouped_tied": dict(
        layers=2, width=32, heads=4, kv_heads=2, head_dim=8, mlp_width=64, swiglu=True,
        qk_norm=True, untied=False, z_loss=1e-3, clip_norm=4.5),
    "gelu_untied": dict(
        layers=2, width=24, heads=2, kv_heads=2, head_dim=12, mlp_width=64, swiglu=False,
        qk_norm=False, untied=True, z_loss=0.0, clip_norm=1.5),
}


class RmsNorm(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(1 + 0.1 * torch.randn(size))

    def forward(self, x):
        return self.weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)


def linear(inputs, outputs):
    layer = torch.nn.Linear(inputs, outputs, bias=False)
    torch.nn.init.normal_(layer.weight, std=0.15)
    return layer


def rotate(x):
    """RoPE in the half-split layout on [sequences, heads, length, head_dim]."""
    half = x.shape[-1] // 2
    frequency = 10000.0 ** (-torch.arange(half) / half)
    angle = torch.arange(x.shape[-2]).unsqueeze(1) * frequency
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * angle.cos() - second * angle.sin(),
                      second * angle.cos() + first * angle.sin()], -1)


class Attention(torch.nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.q_proj = linear(s["width"], s["heads"] * s["head_dim"])
        self.k_proj = linear(s["width"], s["kv_heads"] * s["head_dim"])
        self.v_proj = linear(s["width"], s["kv_heads"] * s["head_dim"])
        self.o_proj = linear(s["heads"] * s["head_dim"], s["width"])
        if s["qk_norm"]:
            self.q_norm = RmsNorm(s["head_dim"])
            self.k_norm = RmsNorm(s["head_dim"])

    def forward(self, x):
        s = self.s

        def heads(y, count):
            return y.view(y.shape[0], y.shape[1], count, s["head_dim"]).transpose(1, 2)

        q = heads(self.q_proj(x), s["heads"])
        k = heads(self.k_proj(x), s["kv_heads"])
        v = heads(self.v_proj(x), s["kv_heads"])
        if s["qk_norm"]:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q), rotate(k)
        share = s["heads"] // s["kv_heads"]
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(s["head_dim"])
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        out = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Mlp(torch.nn.Module):
    def __init__(self, s):
        super().__init__()
        self.swiglu = s["swiglu"]
        if self.swiglu:
            self.gate_proj = linear(s["width"], s["mlp_width"])
        self.up_proj = linear(s["width"], s["mlp_width"])
        self.down_proj = linear(s["mlp_width"], s["width"])

    def forward(self, x):
        if self.swiglu:
            return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return self.down_proj(torch.nn.functional.gelu(self.up_proj(x), approximate="tanh"))


class Block(torch.nn.Module):
    def __init__(self, s):
        super().__init__()
        self.input_layernorm = RmsNorm(s["width"])
        self.self_attn = Attention(s)
        self.post_attention_layernorm = RmsNorm(s["width"])
        self.mlp = Mlp(s)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Transformer(torch.nn.Module):
    """Parameter names are those of common/params/tensor_table.h."""

    def __init__(self, s):
        super().__init__()
        self.s = s
        self.model = torch.nn.Module()
        self.model.embed_tokens = torch.nn.Embedding(PADDED, s["width"])
        torch.nn.init.normal_(self.model.embed_tokens.weight, std=0.3)
        self.model.layers = torch.nn.ModuleList([Block(s) for _ in range(s["layers"])])
        self.model.norm = RmsNorm(s["width"])
        if s["untied"]:
            self.lm_head = linear(s["width"], PADDED)

    def forward(self, window):
        x = self.model.embed_tokens(window[:, :-1])
        for block in self.model.layers:
            x = block(x)
        head = self.lm_head if self.s["untied"] else self.model.embed_tokens
        logits = (self.model.norm(x) @ head.weight.T)[..., :VOCABULARY].flatten(0, 1)
        log_z = logits.logsumexp(-1)
        cross_entropy = torch.nn.functional.cross_entropy(logits, window[:, 1:].flatten())
        return cross_entropy + self.s["z_loss"] * (log_z * log_z).mean()


def is_muons(name, parameter):
    return ".layers." in name and parameter.dim() == 2


def orthogonalize(x):
    x = x / (x.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    def __init__(self, parameters, **defaults):
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buffer.mul_(group["momentum"]).add_(p.grad)
                update = orthogonalize(p.grad + group["momentum"] * buffer)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * math.sqrt(max(1, p.shape[0] / p.shape[1])) * update)


def make_optimizers(kind, model):
    """Optimizers with a `peak` learning rate in every group."""
    muon, decayed, plain = [], [], []
    for name, p in model.named_parameters():
        if kind == "MUON" and is_muons(name, p):
            muon.append(p)
        else:
            (decayed if p.dim() == 2 else plain).append(p)
    optimizers = [torch.optim.AdamW(
        [dict(params=decayed, weight_decay=WEIGHT_DECAY, peak=LEARNING_RATE),
         dict(params=plain, weight_decay=0.0, peak=LEARNING_RATE)],
        lr=LEARNING_RATE, betas=(BETA1, BETA2), eps=EPSILON)]
    if muon:
        optimizers.append(Muon(
            [dict(params=muon, peak=MUON_LEARNING_RATE)], lr=MUON_LEARNING_RATE,
            momentum=MUON_MOMENTUM, weight_decay=WEIGHT_DECAY))
    return optimizers


def schedule(step):
    if step < WARMUP_STEPS:
        return step / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / (SCHEDULE_STEPS - WARMUP_STEPS)
    return FINAL_FRACTION + (1 - FINAL_FRACTION) * (1 + math.cos(math.pi * progress)) / 2


def train(kind, model, batches, clip_norm):
    """The losses and gradient norms of all steps, and the gradients of the first."""
    optimizers = make_optimizers(kind, model)
    losses, norms, first = [], [], None
    for step, window in enumerate(batches, start=1):
        model.zero_grad()
        loss = model(window)
        loss.backward()
        gradients = [p.grad for p in model.parameters()]
        if first is None:
            first = {name: p.grad.clone() for name, p in model.named_parameters()}
        norm = math.sqrt(sum((g * g).sum().item() for g in gradients))
        for g in gradients:
            g.mul_(min(1.0, clip_norm / norm))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * schedule(step)
            optimizer.step()
        losses.append(loss.item())
        norms.append(norm)
    return losses, norms, first


def run_config(s):
    return f"""
model {{
  vocabulary_size: {VOCABULARY} layers: {s["layers"]} width: {s["width"]} heads: {s["heads"]}
  kv_heads: {s["kv_heads"]} head_dim: {s["head_dim"]} mlp_width: {s["mlp_width"]}
  mlp: {"SWIGLU" if s["swiglu"] else "GELU"} qk_norm: {str(s["qk_norm"]).lower()}
  untied_head: {str(s["untied"]).lower()} z_loss: {s["z_loss"]} sequence_length: {LENGTH}
}}
train {{
  steps: {SCHEDULE_STEPS} warmup_steps: {WARMUP_STEPS} batch_sequences: {SEQUENCES}
  final_learning_rate_fraction: {FINAL_FRACTION} learning_rate: {LEARNING_RATE}
  muon_learning_rate: {MUON_LEARNING_RATE} muon_momentum: {MUON_MOMENTUM}
  beta1: {BETA1} beta2: {BETA2} epsilon: {EPSILON} weight_decay: {WEIGHT_DECAY}
  clip_norm: {s["clip_norm"]}
}}
sync {{ steps_between_syncs: 10 }}
"""


def bigram_text(generator):
    """Windows of a language in which a token mostly decides the next: there is much to learn."""
    follower = torch.randint(VOCABULARY, (VOCABULARY,), generator=generator)
    noise = torch.randint(VOCABULARY, (STEPS, SEQUENCES, LENGTH + 1), generator=generator)
    is_noise = torch.rand(noise.shape, generator=generator) < 0.3
    text = noise.clone()
    for i in range(1, LENGTH + 1):
        text[..., i] = torch.where(is_noise[..., i], noise[..., i], follower[text[..., i - 1]])
    return text


def write_fixture(folder, name, s):
    torch.manual_seed(17)
    batches = bigram_text(torch.Generator().manual_seed(5))
    model = Transformer(s)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.float().double())  # Weights that float32 holds exactly.
    start = {key: value.clone() for key, value in model.state_dict().items()}
    curves = {}
    for kind in ("ADAMW", "MUON"):
        model.load_state_dict(start)
        losses, norms, gradients = train(kind, model, batches, s["clip_norm"])
        curves[kind] = dict(losses=losses, gradient_norms=norms)
        clipped = sum(norm > s["clip_norm"] for norm in norms)
        print(f"{name} {kind}: {losses[0]:.4f} -> {losses[-1]:.4f}, "
              f"{clipped} of {STEPS} steps clipped")
    tensors, at = [], 0
    for key, value in start.items():
        tensors.append(dict(name=key, size=value.numel(), offset=at))
        at += value.numel()
    with open(folder / f"{name}.bin", "wb") as file:
        for values in (start, gradients):
            for key in start:
                file.write(values[key].float().contiguous().numpy().tobytes())
        file.write(batches.int().numpy().tobytes())
    description = dict(
        made_by=f"make_fixture.py with PyTorch {torch.__version__}", config=run_config(s),
        steps=STEPS, sequences=SEQUENCES, length=LENGTH, weights=at, tensors=tensors,
        curves=curves)
    (folder / f"{name}.json").write_text(json.dumps(description, indent=1) + "\n")


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    for name, shape in SHAPES.items():
        write_fixture(folder, name, shape)


if __name__ == "__main__":
    main()
