"""PyTorch's DistributedDataParallel under torchrun, with bf16 gradients or PowerSGD.

Site 0 saves a checkpoint now and then; after a loss of a site torchrun starts all again, from it.
PowerSGD hangs with gloo's two threads and several buckets, so there is one bucket.
"""

SAVE_EVERY = 64
CANNOT = {"server": "no server", "join": "fixed world size"}


def command(cell, site):
    return [cell.python, "-m", "torch.distributed.run", f"--nnodes={cell.sites}", "--nproc-per-node=1",
            "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=peers",
            f"--rdzv-endpoint={cell.addresses[0]}:{cell.port}", f"--local-addr={cell.addresses[site]}",
            *cell.task(site)[1:]]


def start_again(task):
    """Site 0's checkpoint at all sites; returns the step at which to go on."""
    import torch
    import torch.distributed as dist

    path = task.folder / "checkpoint.pt"
    kept = [torch.load(path) if dist.get_rank() == 0 and path.exists() else None]
    dist.broadcast_object_list(kept)
    if kept[0] is None:
        return 0
    task.model.load_state_dict(kept[0]["model"])
    task.optimizer.load_state_dict(kept[0]["optimizer"])
    return kept[0]["step"]


def save(task, step):
    import torch

    if task.site == 0 and step % SAVE_EVERY == 0:
        path = task.folder / "checkpoint.pt"
        torch.save({"model": task.model.state_dict(), "optimizer": task.optimizer.state_dict(), "step": step},
                   path.with_suffix(".new"))
        path.with_suffix(".new").rename(path)


def train(task):
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    begin = start_again(task)
    model = DistributedDataParallel(task.model, bucket_cap_mb=1000 if task.variant == "powersgd" else 25)
    if task.variant == "powersgd":
        state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=4,
                                            start_powerSGD_iter=10)
        model.register_comm_hook(state, default_hooks.bf16_compress_wrapper(powerSGD_hook.powerSGD_hook))
    else:
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    task.ready()
    for step in range(begin, task.steps):
        task.step(step, model)
        save(task, step + 1)
    values = task.values()
    dist.destroy_process_group()
    return values
