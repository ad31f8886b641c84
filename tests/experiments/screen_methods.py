#!/usr/bin/env python3
"""Trains the study's small model on M sites within one process of PyTorch, to screen methods that
Causeway has no option for.

usage: screen_methods.py --data OUT/text/data [--workers 4] [--steps 2000] [--period 30] ...

The sites take equal shares of every batch, have Muon of their own, and are replaced by their plain
mean every H steps: all parameters at once, without overlap, in fp32 or by a codec both ways. It
prints the held-out loss, that of the mean of the values over the last fifth, and a line of JSON. The
same arguments give the same figures on one machine. A method that does not pay here is not worth an
option; one that does is then built and trained as the study does.
Needs PyTorch. One thread; 2,000 steps take four minutes.
"""

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path

import numpy
import torch
from torch.nn import functional

WINDOW, BATCH, WIDTH, LAYERS, HEADS, MLP, VOCABULARY = 128, 16, 64, 6, 4, 192, 256
MUON_RATE, ADAMW_RATE = 0.02, 1e-2
HELD_OUT_WINDOWS = 1024  # At most.
HEADER_VALUES = 512  # Header of a shard of tokens, which are 16 bits each.
SHAPES = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "o": (WIDTH, WIDTH),
          "gate": (WIDTH, MLP), "up": (WIDTH, MLP), "down": (MLP, WIDTH)}


def windows(folder: Path, name: str) -> numpy.ndarray:
    """All windows of a shard with the token after each: [windows, WINDOW + 1]."""
    tokens = numpy.fromfile(folder / f"{name}_000000.bin", dtype=numpy.uint16)[HEADER_VALUES:]
    if len(tokens) <= WINDOW or tokens.max() >= VOCABULARY:
        sys.exit(f"screen_methods: {folder} has no bytes to train on: study.py --scale small-6k "
                 "prepares them in OUT/text/data")
    starts = numpy.arange(len(tokens) // WINDOW - 1) * WINDOW
    return tokens[starts[:, None] + numpy.arange(WINDOW + 1)].astype(numpy.int64)


def initial_parameters(seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)

    def normal(shape, deviation):
        return torch.randn(*shape, generator=draw) * deviation

    parameters = {"embedding": normal((VOCABULARY, WIDTH), 0.08),
                  "head": normal((WIDTH, VOCABULARY), WIDTH ** -0.5), "norm": torch.ones(WIDTH)}
    for layer in range(LAYERS):
        for name, shape in SHAPES.items():
            scale = (2 * LAYERS) ** -0.5 if name in ("o", "down") else 1
            parameters[f"{name}.{layer}"] = normal(shape, shape[0] ** -0.5 * scale)
        parameters[f"norm1.{layer}"] = torch.ones(WIDTH)
        parameters[f"norm2.{layer}"] = torch.ones(WIDTH)
    return parameters


def rotated(x: torch.Tensor) -> torch.Tensor:
    size = WIDTH // HEADS
    angles = torch.arange(WINDOW).float()[:, None] * 10000 ** (-torch.arange(0, size, 2).float() / size)
    cosine, sine = angles.cos(), angles.sin()
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1).flatten(-2)


def normalized(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight[:, None, None]


def logits(parameters: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """tokens: [sites, windows, WINDOW]; every parameter has the sites as its first dimension."""
    sites, count, length = tokens.shape
    x = torch.stack([parameters["embedding"][i][tokens[i]] for i in range(sites)])

    def linear(x, name):
        return torch.bmm(x.reshape(sites, count * length, -1), parameters[name]).view(
            sites, count, length, -1)

    def heads(x):
        return x.view(sites, count, length, HEADS, WIDTH // HEADS).transpose(2, 3)

    for layer in range(LAYERS):
        y = normalized(x, parameters[f"norm1.{layer}"])
        query, key, value = (heads(linear(y, f"{name}.{layer}")) for name in "qkv")
        attended = functional.scaled_dot_product_attention(
            *(part.reshape(sites * count, HEADS, length, -1)
              for part in (rotated(query), rotated(key), value)), is_causal=True)
        attended = attended.view(sites, count, HEADS, length, -1).transpose(2, 3)
        x = x + linear(attended.reshape(sites, count, length, WIDTH), f"o.{layer}")
        y = normalized(x, parameters[f"norm2.{layer}"])
        x = x + linear(functional.silu(linear(y, f"gate.{layer}")) * linear(y, f"up.{layer}"),
                       f"down.{layer}")
    return linear(normalized(x, parameters["norm"]), "head")


def orthogonalized(x: torch.Tensor) -> torch.Tensor:
    """Muon's five steps of Newton and Schulz over the last two dimensions."""
    a, b, c = 3.4445, -4.7750, 2.0315
    y = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    turned = y.shape[-2] > y.shape[-1]
    y = y.mT if turned else y
    for _ in range(5):
        square = y @ y.mT
        y = a * y + (b * square + c * (square @ square)) @ y
    return y.mT if turned else y


def decoded(x: torch.Tensor, codec: str, group: int) -> torch.Tensor:
    """Decode(Encode(x)) up to the rounding of scales, each of which a group of values shares."""
    if codec == "fp32":
        return x
    groups = x.reshape(-1, min(group, x.numel()))
    sign = 1 - 2 * (groups < 0).float()
    if codec == "int4":
        scale = groups.abs().amax(1, keepdim=True) / 7
        result = (groups / scale.clamp(min=1e-30)).round() * scale
    elif codec == "lm2":
        scale = groups.pow(2).mean(1, keepdim=True).sqrt()
        result = sign * torch.where(groups.abs() > 0.9816 * scale, 1.510 * scale, 0.4528 * scale)
    else:
        result = sign * groups.abs().mean(1, keepdim=True)
    return result.view_as(x)


class Sites:
    """M replicas with their optimizers, and what they were last replaced by."""

    def __init__(self, options: argparse.Namespace):
        self._options = options
        initial = initial_parameters(options.seed)
        self.merged = {name: value.clone() for name, value in initial.items()}
        self._theta = {name: value.clone() for name, value in initial.items()}
        self._residual = {name: torch.zeros(options.workers, *value.shape)
                          for name, value in initial.items()}
        self.local = {name: value.expand(options.workers, *value.shape).clone().requires_grad_()
                      for name, value in initial.items()}
        self._matrices = [name for name, value in initial.items()
                          if value.dim() == 2 and name not in ("embedding", "head")]
        self._others = [name for name in initial if name not in self._matrices]
        zeros = lambda names: {name: torch.zeros_like(self.local[name]) for name in names}
        self._momentum, self._slow = zeros(self._matrices), zeros(self._matrices)
        self._first, self._second = zeros(self._others), zeros(self._others)

    def _rate(self, step: int) -> float:
        warm_up = self._options.steps // 20
        if self._options.decay_from is not None:
            left = (1 - step / self._options.steps) / (1 - self._options.decay_from)
            return min(1, (step + 1) / warm_up, max(self._options.final_fraction, left))
        cosine = 0.5 * (1 + math.cos(math.pi * min(1, step / self._options.steps)))
        floor = self._options.final_fraction
        return min(1, (step + 1) / warm_up) * (floor + (1 - floor) * cosine)

    def train(self, step: int, tokens: torch.Tensor) -> None:
        """tokens: [sites, windows, WINDOW + 1]."""
        inputs, targets = tokens[..., :-1], tokens[..., 1:]
        loss = functional.cross_entropy(
            logits(self.local, inputs).reshape(-1, VOCABULARY), targets.reshape(-1),
            reduction="sum") / (inputs.shape[1] * WINDOW)
        gradients = dict(zip(self.local, torch.autograd.grad(loss, list(self.local.values()))))
        with torch.no_grad():
            self._update(step, gradients)

    def _update(self, step: int, gradients: dict[str, torch.Tensor]) -> None:
        options, rate = self._options, self._rate(step)
        mu, beta, share = options.momentum, options.slow_beta, options.slow_share
        beta2 = options.beta2
        by_shape: dict[tuple, list] = {}
        for name in self._matrices:
            gradient, momentum = gradients[name], self._momentum[name]
            momentum.mul_(mu).add_(gradient, alpha=1 - mu)
            update = gradient * (1 - mu) + momentum * mu
            if options.share == "slow":
                slow = self._slow[name]
                slow.mul_(beta).add_(gradient, alpha=1 - beta)
                update = (1 - share) * update + share * slow / (1 - beta ** (step + 1))
            by_shape.setdefault(tuple(update.shape[1:]), []).append((name, update))
        for shape, updates in by_shape.items():
            steps = orthogonalized(torch.stack([update for _, update in updates]))
            scale = max(1, shape[1] / shape[0]) ** 0.5
            for (name, _), direction in zip(updates, steps):
                self.local[name].data.mul_(1 - MUON_RATE * rate * options.weight_decay)
                self.local[name].data.add_(direction, alpha=-MUON_RATE * rate * scale)
        for name in self._others:
            first, second = self._first[name], self._second[name]
            first.mul_(0.9).add_(gradients[name], alpha=0.1)
            second.mul_(beta2).addcmul_(gradients[name], gradients[name], value=1 - beta2)
            if self.local[name].dim() == 3:
                self.local[name].data.mul_(1 - ADAMW_RATE * rate * options.weight_decay)
            self.local[name].data.add_(
                (first / (1 - 0.9 ** (step + 1)))
                / ((second / (1 - beta2 ** (step + 1))).sqrt() + 1e-8), alpha=-ADAMW_RATE * rate)

    def values(self) -> dict[str, torch.Tensor]:
        """What is evaluated: merged, or of the only site."""
        if self._options.workers > 1:
            return self.merged
        return {name: value.detach()[0] for name, value in self.local.items()}

    def merge(self) -> None:
        shared = {"none": {}, "momentum": self._momentum, "slow": self._slow}[self._options.share]
        with torch.no_grad():
            for name, value in self.local.items():
                self._merge_one(name, value.data)
                value.data.copy_(self.merged[name])
            for value in shared.values():
                value.copy_(value.mean(0))

    def _merge_one(self, name: str, local: torch.Tensor) -> None:
        codec, group = self._options.codec, self._options.group
        merged, theta, residual = self.merged[name], self._theta[name], self._residual[name]
        delta = merged - local + residual
        sent = torch.stack([decoded(one, codec, group) for one in delta])
        if codec in ("lm2", "sign"):
            residual.copy_(delta - sent)
        theta -= sent.mean(0)
        merged -= decoded(merged - theta, codec, group)


def held_out_loss(values: dict[str, torch.Tensor], chosen: torch.Tensor) -> float:
    parameters = {name: value[None] for name, value in values.items()}
    parts = chosen.split(64)
    with torch.no_grad():
        return statistics.fmean([functional.cross_entropy(
            logits(parameters, part[None, :, :-1]).reshape(-1, VOCABULARY),
            part[:, 1:].reshape(-1)).item() for part in parts])


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="screen_methods.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="shards of bytes, as study.py's")
    parser.add_argument("--workers", type=int, choices=(1, 2, 4, 8, 16), default=4,
                        help="1: data parallelism, never merged (default: 4)")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--period", type=int, default=30, help="H (default: 30)")
    parser.add_argument("--later_period", type=int, help="H from --later_from on")
    parser.add_argument("--later_from", type=float, default=0.5, help="share of the steps")
    parser.add_argument("--codec", choices=("fp32", "int4", "lm2", "sign"), default="fp32",
                        help="both ways; lm2 and sign, a bit per value, with feedback")
    parser.add_argument("--group", type=int, default=64, help="values that share a scale")
    parser.add_argument("--momentum", type=float, default=0.95, help="Muon's")
    parser.add_argument("--beta2", type=float, default=0.99, help="AdamW's")
    parser.add_argument("--weight_decay", type=float, default=0.01)
    parser.add_argument("--decay_from", type=float,
                        help="share of the steps with a constant rate, which then falls linearly, "
                             "in place of a cosine")
    parser.add_argument("--share", choices=("none", "momentum", "slow"), default="none",
                        help="average it with the parameters: Muon's momentum, or a slow one mixed into it")
    parser.add_argument("--slow_beta", type=float, default=0.99)
    parser.add_argument("--slow_share", type=float, default=0.5)
    parser.add_argument("--final_fraction", type=float, default=0.1, help="of the learning rate")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.steps < 80 or options.period < 1 or (options.later_period or 1) < 1:
        parser.error("--steps must be at least 80, --period and --later_period at least 1")
    return options


def main(arguments: list[str]) -> int:
    options = parse_arguments(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    train, held_out = windows(options.data, "train"), windows(options.data, "held_out")
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(1000 + options.seed))
    chosen = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(7))
    evaluation = torch.from_numpy(held_out[chosen[:HELD_OUT_WINDOWS].numpy()])
    sites = Sites(options)
    begin = time.monotonic()
    losses = []
    average, averaged = {name: torch.zeros_like(value) for name, value in sites.merged.items()}, 0
    for step in range(options.steps):
        at = step * BATCH % (len(order) - BATCH)
        tokens = torch.from_numpy(train[order[at:at + BATCH].numpy()])
        sites.train(step, tokens.reshape(options.workers, BATCH // options.workers, WINDOW + 1))
        done = step + 1
        later = options.later_period and step > options.later_from * options.steps
        period = options.later_period if later else options.period
        if options.workers > 1 and (done % period == 0 or done == options.steps):
            sites.merge()
        if done > 0.8 * options.steps and done % options.period == 0:
            averaged += 1
            current = sites.values()
            for name, value in average.items():
                value += (current[name] - value) / averaged
        if done % (options.steps // 4) == 0 or done in (options.steps - 60, options.steps - 30):
            losses.append(held_out_loss(sites.values(), evaluation))
            spent = time.monotonic() - begin
            print(f"step {done} of {options.steps}, held-out loss {losses[-1]:.4f}, "
                  f"{done / spent:.1f} steps/s, {spent / done * (options.steps - done):.0f} s left",
                  flush=True)
    print(json.dumps({**vars(options), "data": str(options.data),
                      "held_out_loss": round(statistics.fmean(losses[-2:]), 4),
                      "averaged_loss": round(held_out_loss(average, evaluation), 4)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
