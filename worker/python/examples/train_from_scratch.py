#!/usr/bin/env python3
"""A language model trained from scratch as a site of a run: a plain PyTorch loop.

    train_from_scratch.py --coordinator=hub:7070 --id=paris --data=FOLDER_OR_TEXT [--out=paris]

The model is the run's: its shape, batch, optimizer and learning rates are those that the
coordinator's configuration names, as for a causeway-worker. FOLDER has token shards; a text is read as bytes.
Several sites of one run draw different windows of the same data.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import pathlib
import sys
import time
from typing import Any, Dict, List

import torch

import causeway
import causeway.torch as cw
from small_transformer import Shape, SmallTransformer, continue_text
from token_shards import Tokens, draw_windows, held_out_windows, open_data

_PROMPT_TOKENS = 64


def make_model(config: Dict[str, Any]) -> SmallTransformer:
    """The model of a run's configuration."""
    return SmallTransformer(Shape.of_run(config))


def make_optimizers(model: torch.nn.Module, train: Dict[str, Any]) -> List[torch.optim.Optimizer]:
    """AdamW; with optimizer MUON the blocks' matrices have Muon, where torch has it (2.9)."""
    blocks = [parameter for name, parameter in model.named_parameters()
              if ".layers." in name and parameter.dim() == 2]
    if train["optimizer"] != "MUON" or not hasattr(torch.optim, "Muon"):
        blocks = []
    muon = {id(parameter) for parameter in blocks}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in muon]
    groups = [{"params": [one for one in rest if one.dim() == 2],
               "weight_decay": train["weight_decay"]},
              {"params": [one for one in rest if one.dim() != 2], "weight_decay": 0.0}]
    optimizers: List[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=train["learning_rate"], eps=train["epsilon"],
                          betas=(train["beta1"], train["beta2"]))]
    if blocks:
        optimizers.append(torch.optim.Muon(blocks, lr=train["muon_learning_rate"],
                                           momentum=train["muon_momentum"],
                                           weight_decay=train["weight_decay"]))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return optimizers


def learning_rate_factor(step: int, train: Dict[str, Any]) -> float:
    """Linear warm-up, then half a cosine, or a constant and a line, down to the final fraction."""
    warmup, final = train["warmup_steps"], train["final_learning_rate_fraction"]
    if step < warmup:
        return step / warmup
    begin = max(warmup, train.get("constant_fraction", 0) * train["steps"])
    progress = min(max((step - begin) / max(1.0, train["steps"] - begin), 0.0), 1.0)
    if train.get("constant_fraction", 0) > 0:
        return 1 - (1 - final) * progress
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))


@torch.no_grad()
def held_out_loss(model: torch.nn.Module, windows: torch.Tensor, batch: int) -> float:
    losses = [model.loss(part).item() * len(part) for part in windows.split(batch)]
    return sum(losses) / len(windows)


def train_site(arguments: argparse.Namespace, make_model=make_model) -> Dict[str, Any]:
    """Trains to the end of the run, and returns a summary."""
    config = causeway.describe(arguments.coordinator, id=arguments.id, tls=arguments.tls)["config"]
    train, batch = config["train"], config["train"]["batch_sequences"]
    model = make_model(config)
    length = config["model"]["sequence_length"]
    tokens, held_out = open_data(arguments.data)
    optimizers = make_optimizers(model, train)
    every = train.get("evaluate_every_steps", 0)
    evaluations: Dict[int, float] = {}
    evaluation_s = 0.0

    def evaluate() -> None:
        nonlocal evaluation_s
        begin = time.monotonic()
        windows = held_out_windows(held_out, length, train["evaluation_sequences"])
        with site.published():
            loss = held_out_loss(model, torch.from_numpy(windows), batch)
        evaluations[site.current_step] = loss
        site.report_evaluation(loss)
        logging.info("step %d: held-out loss of the published parameters %.4f", site.current_step,
                     loss)
        evaluation_s += time.monotonic() - begin

    site = cw.join(arguments.coordinator, model, id=arguments.id, tls=arguments.tls,
                   data_slot=True, output=arguments.out, threads=arguments.threads)
    with site:
        evaluates = site.data_slot == 0
        if evaluates:
            evaluate()
        while not site.should_stop:
            begin = time.monotonic()
            factor = learning_rate_factor(site.next_step, train)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = factor * group["peak"]
            windows = draw_windows(tokens, length, batch, seed=train["seed"], slot=site.data_slot,
                                   slots=config["membership"]["max_workers"],
                                   first_draw=site.next_draw)
            loss = model.loss(torch.from_numpy(windows))
            loss.backward()
            if train["clip_norm"] > 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), train["clip_norm"])
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            site.report(loss=loss.item(), step_s=time.monotonic() - begin)
            site.step(tokens=batch * length, draws=batch)
            if evaluates and every and site.current_step % every == 0 and not site.should_stop:
                evaluate()
    if evaluates:
        evaluate()
    summary = {"trainer": "pytorch", **site.summary()}
    if evaluations:
        summary |= {"evaluation_seconds": evaluation_s,
                    "initial_loss": next(iter(evaluations.values())),
                    "eval_loss": evaluations[site.current_step]}
        if arguments.sample_tokens:
            with site.published():
                summary["sample"] = sample(model, held_out, arguments.sample_tokens)
    return summary


def sample(model: SmallTransformer, text: Tokens, count: int) -> str:
    """The beginning of a text of bytes, as the model continues it."""
    torch.manual_seed(1)
    prompt = torch.from_numpy(text.read(0, min(_PROMPT_TOKENS, len(text))))
    return bytes(continue_text(model, prompt, count).tolist()).decode("utf-8", "replace")


def parse_arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coordinator", required=True, metavar="HOST:PORT")
    parser.add_argument("--id", required=True, help="this site's name, unique in the run")
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path,
                        help="folder for metrics.jsonl and summary.json")
    parser.add_argument("--tls", type=pathlib.Path,
                        help="folder of the site's certificate or token")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sample_tokens", type=int, default=0,
                        help="length of the text of bytes that the model writes at the end")
    return parser.parse_args()


def main(make_model=make_model, description: str = __doc__) -> int:
    arguments = parse_arguments(description)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(arguments.threads)
    try:
        summary = train_site(arguments, make_model)
    except causeway.Error as error:
        print(f"{arguments.id}: {error}", file=sys.stderr)
        return 2 if isinstance(error, (causeway.Refused, causeway.InvalidArgument)) else 1
    if arguments.out:
        (arguments.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n",
                                                    encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
