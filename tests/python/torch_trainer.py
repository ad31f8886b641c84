#!/usr/bin/env python3
"""A site of a PyTorch model as a program, for tests that kill and resume it, or start several
processes of one site.

usage: torch_trainer.py ADDRESS [--checkpoint FILE] [--every N] [--hold STEP] [--dtype NAME]
                        [--shard fsdp|hsdp|columns|ddp|turned] [--width N] [--fail STEP] [--die STEP]
                        [--freeze STEP] [--swap STEP] [--stop STEP] [--stop_within STEP] [--evaluate] [--last_state]
                        [--outsider] [--devices N]

Gradients are a function of step and place, the same for every way to shard, of which turned is ddp with a
parameter that is not contiguous. With RANK, WORLD_SIZE and STORE (a file by which they find each other) set, it is
one process of the site. At step HOLD it waits for its end; at step FAIL the last process raises, at step DIE it is
gone, from step FREEZE on it trains less, at step SWAP it has another parameter when published values are to be lent.
At step STOP, or when the library is next at work from step STOP_WITHIN on, the last process is stopped, and Ctrl-C
ends the first one's wait for it. Parameters are on N emulated devices in turn. Each process has a checkpoint of its own.
With --last_state the first one takes a state when the others have nothing more to do, with --outsider the last process
is none of the site's. Forward passes of --evaluate, before it joins and of published values, change nothing. Where
devices are emulated, it says how often steps waited for one in its own thread.
"""
import argparse
import hashlib
import os
import pathlib
import queue
import signal
import time

import torch
import torch.distributed as dist

import causeway.torch as cw
import emulated
from causeway import _session
from causeway.torch import _group
from causeway.torch._values import TorchValues
from models import small_model, synthetic_gradients, tokens, whole


def stop_last(within):
    """Stops this process, now or when the first one's library is about to have this one's do something."""
    def reads(values, fragments):
        read(values, fragments)
        if fragments:
            os.kill(os.getpid(), signal.SIGSTOP)

    read = TorchValues.read
    if within:
        TorchValues.read = reads
    else:
        os.kill(os.getpid(), signal.SIGSTOP)


def interrupt_waits(within):
    """Ctrl-C comes when this process has waited for a while: for its library, or for other processes."""
    def wait(outcome):
        try:
            return outcome.get(timeout=5)
        except queue.Empty:
            raise KeyboardInterrupt from None

    def looks(work):
        found = is_done(work)
        waited.append(found)
        if waited[-3:] == [False] * 3:
            signal.raise_signal(signal.SIGINT)
        return found

    signal.signal(signal.SIGINT, signal.default_int_handler)  # Whatever this process was started by.
    is_done, waited = _group._is_done, []
    if within:
        _session._Interruptible._wait = staticmethod(wait)
    else:
        _group._FIRST_LINE_S = 0
        _group._is_done = looks


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--checkpoint")
    parser.add_argument("--every", type=int, default=0)
    for name in ("--hold", "--fail", "--die", "--freeze", "--swap", "--stop", "--stop_within"):
        parser.add_argument(name, type=int, default=-1)
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--last_state", action="store_true")
    parser.add_argument("--outsider", action="store_true")
    parser.add_argument("--width", type=int, default=10)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--shard")
    parser.add_argument("--devices", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    model = emulated.spread(small_model(getattr(torch, options.dtype), width=options.width), options.devices)
    if options.checkpoint and size > 1:
        options.checkpoint += f".{rank}"
    if options.shard:
        dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=rank,
                                world_size=size)
    group = None
    if options.outsider:
        size -= 1
        group = dist.new_group(range(size))
        if rank == size:
            dist.barrier()
            return
    if options.shard in ("fsdp", "hsdp"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (size,)) if options.shard == "fsdp" else \
            init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicas", "shards"))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif options.shard == "columns":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor
        mesh = init_device_mesh("cpu", (size,))
        for layer in [layer for block in model.blocks for layer in (block[0], block[2])]:
            layer.weight = torch.nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, [Shard(1)]))
            layer.bias = torch.nn.Parameter(distribute_tensor(layer.bias.detach(), mesh, [Replicate()]))
    elif options.shard in ("ddp", "turned"):
        if options.shard == "turned":
            model.embed.weight.data = model.embed.weight.data.t().contiguous().t()
        model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    site = cw.join(options.address, model, optimizer, id="s", tokens_per_step=12 // size, group=group,
                   drain_timeout_s=2 if max(options.stop, options.stop_within) >= 0 else None)
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
        waits = 0
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
            if step in (options.stop, options.stop_within):
                (stop_last if rank == size - 1 else interrupt_waits)(step == options.stop_within)
            if step == options.swap:
                if rank == size - 1:
                    model.module.norm.weight = torch.nn.Parameter(model.module.norm.weight.detach().clone())
                with site.published():
                    pass
            if step == options.freeze and rank == size - 1:
                next(model.parameters()).requires_grad_(False)
            synthetic_gradients(model, step)
            waits -= emulated.waits()
            optimizer.step()
            waits += emulated.waits()
    print(f"waits {waits}", flush=True)
    with site.published():
        digest = hashlib.sha256(b"".join(
            whole(p).detach().float().numpy().tobytes() for p in model.parameters())).hexdigest()
    print(f"published {digest}", flush=True)
    if options.outsider:
        dist.barrier()
    if options.shard:
        dist.destroy_process_group()
    if options.last_state:
        done = [pathlib.Path(f"{os.environ['STORE']}.{other}") for other in range(1, size)]
        if rank > 0:
            done[rank - 1].touch()
            return
        while not all(path.exists() for path in done):
            time.sleep(0.01)
        print(f"state {len(site.state_dict()['state'])}", flush=True)


def run(arguments=None):
    """Ends the process with 1 after a line that says what was raised."""
    try:
        main(arguments)
    except Exception as error:  # Its class is what tests look at.
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(1)  # Like a launcher that ends the others.


if __name__ == "__main__":
    run()
