#!/usr/bin/env python3
"""One site of several processes: a model sharded by FSDP2.

    torchrun --nproc_per_node=2 train_fsdp2.py --coordinator=hub:7070 --id=paris --data=TEXT

The coordinator serves a run of any model: `causeway-coordinator serve --initial=first-site`. Sites
may have any number of processes each; fragments are cut by names and ranges, not by ranks.
"""

from __future__ import annotations

import argparse
import datetime
import logging
import os
import pathlib

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import causeway.torch as cw
from small_transformer import Shape, SmallTransformer
from token_shards import draw_windows, open_data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coordinator", required=True, metavar="HOST:PORT")
    parser.add_argument("--id", required=True, help="this site's name, unique in the run")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="shards, or a text")
    parser.add_argument("--layers", type=int, default=Shape.layers)
    parser.add_argument("--width", type=int, default=Shape.width)
    parser.add_argument("--batch", type=int, default=4, help="windows per step and process")
    parser.add_argument("--length", type=int, default=Shape.sequence_length)
    parser.add_argument("--learning_rate", type=float, default=3e-3)
    parser.add_argument("--out", type=pathlib.Path, help="file for the whole published model")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda" if gpu else "cpu")
    # A pause of the run may be longer than what collectives wait for by themselves.
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo",
                            timeout=datetime.timedelta(hours=2))
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(1)
    shape = Shape(layers=arguments.layers, width=arguments.width, head_dim=arguments.width // 4,
                  mlp_width=5 * arguments.width // 2, sequence_length=arguments.length)
    model = SmallTransformer(shape).to(device)
    for block in model.model.layers:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)

    tokens, _ = open_data(arguments.data)
    tokens_per_step = arguments.batch * arguments.length
    seed = sum(arguments.id.encode())  # Every site draws in its own order, every rank its own part.
    with cw.join(arguments.coordinator, model, optimizer, id=arguments.id,
                 tokens_per_step=tokens_per_step) as site:
        while not site.should_stop:
            windows = draw_windows(tokens, arguments.length, arguments.batch, seed=seed, slot=rank,
                                   slots=ranks, first_draw=site.current_step * arguments.batch)
            logits = model(torch.from_numpy(windows[:, :-1]).to(device))
            targets = torch.from_numpy(windows[:, 1:]).to(device)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            loss.backward()
            if rank == 0 and site.current_step % 10 == 0:
                print(f"step {site.current_step}: loss {loss.item():.4f}", flush=True)
            site.report(loss=loss.item())
            optimizer.step()  # Followed by the site's step, in every process.
            optimizer.zero_grad()
    if arguments.out:
        with site.published():
            whole = {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}
            if rank == 0:
                torch.save(whole, arguments.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
