#!/usr/bin/env python3
"""Writes the stored fixtures of pytorch_test: small transformers trained for 20 steps by PyTorch.

    python3 tests/reference/pytorch/make_fixture.py [FOLDER]

Needs PyTorch 2.5 (deploy/find_torch); the test itself needs only what this wrote. Everything is
computed in double precision by autograd, of the model that tests/gpu compares throughput with and
of optimizers of its own, so that the fixture carries no rounding error worth mentioning.

NAME.json: the run's configuration as textproto, the tensors and their places in NAME.bin, the
learning curve and gradient norms of each optimizer. NAME.bin, little endian: initial weights
(float32), gradients of step 1 (float32), tokens (int32 [steps, sequences, length + 1]).
"""

import json
import math
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "gpu"))

from torch_baseline import Transformer  # noqa: E402

STEPS = 20
SCHEDULE_STEPS = 40
WARMUP_STEPS = 5
FINAL_FRACTION = 0.1
SEQUENCES = 4
LENGTH = 16
VOCABULARY = 100
BETA1, BETA2, EPSILON = 0.9, 0.99, 1e-8
WEIGHT_DECAY = 0.05
LEARNING_RATE = 3e-3
MUON_LEARNING_RATE = 0.02
MUON_MOMENTUM = 0.95

# Settings of both: neither biases nor learned positions.
COMMON = dict(vocabulary_size=VOCABULARY, sequence_length=LENGTH, layers=2, learned_positions=0, layer_norm=False,
              qkv_bias=False, output_bias=False, mlp_bias=False, norm_epsilon=1e-5, rope_theta=10000.0)
SHAPES = {
    "swiglu_grouped_tied": dict(
        COMMON, width=32, heads=4, kv_heads=2, head_dim=8, mlp_width=64, mlp="SWIGLU",
        qk_norm=True, untied_head=False, z_loss=1e-3, clip_norm=4.5),
    "gelu_untied": dict(
        COMMON, width=24, heads=2, kv_heads=2, head_dim=12, mlp_width=64, mlp="GELU",
        qk_norm=False, untied_head=True, z_loss=0.0, clip_norm=1.5),
}


def draw(name, shape):
    """A tensor's initial values, after those that its module draws for itself."""
    if len(shape) == 1:
        return 1 + 0.1 * torch.randn(shape)
    embeds = name == "model.embed_tokens.weight"
    module = torch.nn.Embedding(*shape) if embeds else torch.nn.Linear(shape[1], shape[0], bias=False)
    return torch.nn.init.normal_(module.weight.detach(), std=0.3 if embeds else 0.15)


def loss_of(transformer, parameters, window):
    """parameters: those of the run, which the optimizers see one by one."""
    joined = {path: torch.cat([parameters[name] for name in names]) for path, names in transformer.run_tensors()}
    logits = torch.func.functional_call(transformer, joined, (window[:, :-1],))
    logits = logits[..., :VOCABULARY].flatten(0, 1)
    log_z = logits.logsumexp(-1)
    cross_entropy = torch.nn.functional.cross_entropy(logits, window[:, 1:].flatten())
    return cross_entropy + transformer.model["z_loss"] * (log_z * log_z).mean()


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


def make_optimizers(kind, parameters):
    """Optimizers with a `peak` learning rate in every group."""
    muon, decayed, plain = [], [], []
    for name, p in parameters.items():
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


def train(kind, transformer, start, batches):
    """The losses and gradient norms of all steps, and the gradients of the first."""
    parameters = {name: value.clone().requires_grad_() for name, value in start.items()}
    optimizers = make_optimizers(kind, parameters)
    losses, norms, first = [], [], None
    for step, window in enumerate(batches, start=1):
        for p in parameters.values():
            p.grad = None
        loss = loss_of(transformer, parameters, window)
        loss.backward()
        gradients = [p.grad for p in parameters.values()]
        if first is None:
            first = {name: p.grad.clone() for name, p in parameters.items()}
        norm = math.sqrt(sum((g * g).sum().item() for g in gradients))
        for g in gradients:
            g.mul_(min(1.0, transformer.model["clip_norm"] / norm))
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
  mlp: {s["mlp"]} qk_norm: {str(s["qk_norm"]).lower()}
  untied_head: {str(s["untied_head"]).lower()} z_loss: {s["z_loss"]} sequence_length: {LENGTH}
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
    transformer = Transformer(s, residual=torch.float64)
    torch.manual_seed(17)
    batches = bigram_text(torch.Generator().manual_seed(5))
    # Weights that float32 holds exactly.
    start = {tensor: draw(tensor, part.shape).float().double()
             for _, parts in transformer.run_tensors() for tensor, part in parts.items()}
    curves = {}
    for kind in ("ADAMW", "MUON"):
        losses, norms, gradients = train(kind, transformer, start, batches)
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
