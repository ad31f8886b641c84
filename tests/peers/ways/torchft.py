"""torchft: Streaming DiLoCo over its own gloo, four fragments, buckets, an overlap that hides the link.

Its should_quantize needs a GPU: on CPUs nothing is ever committed, and nothing raised. bf16 stands for it
here. The outer step is the plain mean, as Causeway's, so that it is no part of what differs.
"""

import math
import os

FRAGMENTS, PERIOD = 4, 32


def server(cell):
    return [os.path.join(os.path.dirname(cell.python), "torchft_lighthouse"), "--bind", f"{cell.hub}:{cell.port}",
            "--min_replicas", 1, "--join_timeout_ms", 10000]


def _modules(model):
    """Four of about the same size."""
    from torch import nn
    layers = list(model.model.layers)
    ends = [len(layers) * part // FRAGMENTS for part in range(FRAGMENTS + 1)]
    parts = [nn.ModuleList(layers[begin:end]) for begin, end in zip(ends, ends[1:])]
    parts[0].extend([model.model.embed_tokens, model.model.norm])
    return parts


def _bf16_gloo():
    import torch.distributed as dist
    from torchft import ProcessGroupGloo

    class Half(dist._Work):
        def __init__(self, work, halves, tensors):
            super().__init__()
            self._work, self._halves, self._tensors = work, halves, tensors

        def wait(self, timeout=None):
            return self._work.wait() if timeout is None else self._work.wait(timeout)

        def get_future(self):
            def widen(future):
                future.value()
                for tensor, half in zip(self._tensors, self._halves):
                    tensor.copy_(half)
                return self._tensors
            return self._work.get_future().then(widen)

    class Bf16Gloo(ProcessGroupGloo):
        def allreduce(self, tensors, opts):
            halves = [tensor.bfloat16() for tensor in tensors]
            return Half(super().allreduce(halves, opts), halves, tensors)

    return Bf16Gloo


def train(task):
    from datetime import timedelta

    import torch
    from torch.distributed import TCPStore
    from torchft import Manager
    from torchft.local_sgd import DiLoCo

    every = PERIOD // FRAGMENTS
    # To the other site and back four times: quorum, and a ring's two halves.
    seconds = 2 * 16 * task.parameters / FRAGMENTS / (task.rate_mbit * 1e6) + 4 * task.rtt_ms / 1e3
    model = task.model
    store = TCPStore(task.address, task.port, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=_bf16_gloo()(timeout=timedelta(seconds=60)), min_replica_size=1, use_async_quorum=False,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": task.optimizer.state_dict()},
        load_state_dict=lambda state: (model.load_state_dict(state["model"]),
                                       task.optimizer.load_state_dict(state["optimizer"])),
        rank=0, world_size=1, store_addr=task.address, store_port=task.port, hostname=task.address,
        lighthouse_addr=f"http://{task.hub}:{task.port}", replica_id=f"site_{task.site}", quorum_retries=10,
        init_sync=False)  # All begin with the same values.
    task.ready()
    parts = _modules(model)
    outer = [torch.optim.SGD(part.parameters(), lr=1.0) for part in parts]
    commits = task.steps // every
    try:
        with DiLoCo(manager, parts, task.optimizer, outer, sync_every=PERIOD, use_bucketization=True,
                    fragment_sync_delay=min(every - 1, math.ceil(seconds / task.step_s))) as diloco:
            while manager.current_step() < commits:
                task.step(manager.current_step() * every + diloco._local_step)
            values = {}
            for part, fragment in zip(parts, diloco._fragments):
                kept = fragment.original_parameters
                values |= {id(parameter): kept[name] for name, parameter in part.named_parameters()}
            return {name: values[id(parameter)].clone() for name, parameter in model.named_parameters()}
    finally:
        manager.shutdown(wait=False)
