#!/usr/bin/env python3
"""A site of a PyTorch model as a program, for tests that kill and resume it, or start several
processes of one site.

usage: torch_trainer.py ADDRESS [--checkpoint FILE] [--every N] [--hold STEP] [--dtype NAME]
                        [--shard fsdp|ddp] [--fail STEP] [--die STEP] [--freeze STEP]
                        [--evaluate]

Gradients are a function of step and place, the same for every way to shard. With RANK,
WORLD_SIZE and STORE (a file by which they find each other) set, it is one process of the site. At step HOLD it waits for its end; at step FAIL the
last process raises, at step DIE it is gone, from step FREEZE on it trains less.
Forward passes of --evaluate, before it joins and of published values, change nothing.
"""
import argparse
import hashlib
import os
import signal
import time

import torch
import torch.distributed as dist

import causeway.torch as cw
from models import small_model, synthetic_gradients, tokens, whole


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--checkpoint")
    parser.add_argument("--every", type=int, default=0)
    parser.add_argument("--hold", type=int, default=-1)
    parser.add_argument("--fail", type=int, default=-1)
    parser.add_argument("--die", type=int, default=-1)
    parser.add_argument("--freeze", type=int, default=-1)
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--shard")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    model = small_model(getattr(torch, options.dtype))
    if options.shard:
        dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=rank,
                                world_size=size)
    if options.shard == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (size,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif options.shard == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    site = cw.join(options.address, model, optimizer, id="s", tokens_per_step=12 // size)
    if options.evaluate:
        model(tokens(0))
    parts = {"model": model, "optimizer": optimizer}
    if options.checkpoint and os.path.exists(options.checkpoint):
        saved = torch.load(options.checkpoint, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        site.load_state_dict(saved["causeway"])
    with site:
        print(f"restored {site.info.restored}", flush=True)
        while not site.should_stop:
            step = site.current_step
            if options.every and step % options.every == 0:
                state = {name: part.state_dict() for name, part in parts.items()}
                torch.save({**state, "causeway": site.state_dict()}, options.checkpoint + ".new")
                os.replace(options.checkpoint + ".new", options.checkpoint)
                site.saved()
            if site.should_save:
                print("anew", flush=True)
            print(f"step {step}", flush=True)
            if step == options.hold:
                while True:
                    time.sleep(60)
            if step == options.fail and rank == size - 1:
                raise ValueError("this process has no more data")
            if step == options.die and rank == size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if options.evaluate and step % 3 == 0:
                with site.published(), torch.no_grad():
                    model(tokens(step))
            if step == options.freeze and rank == size - 1:
                next(model.parameters()).requires_grad_(False)
            synthetic_gradients(model, step)
            optimizer.step()
    with site.published():
        digest = hashlib.sha256(b"".join(
            whole(p).detach().float().numpy().tobytes() for p in model.parameters())).hexdigest()
    print(f"published {digest}", flush=True)
    if options.shard:
        dist.destroy_process_group()


def run(arguments=None):
    """Ends the process: 0, or 1 after a line that says what was raised."""
    try:
        main(arguments)
    except Exception as error:  # Its class is what tests look at.
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(1)  # Like a launcher that ends the others.
    os._exit(0)


if __name__ == "__main__":
    run()
