"""One process of cost.py, with a Python that has torch: a trainer of GPT-2's shape, as a site of a run.
Writes one JSON object.

A step is a sleep, which stands for forward and backward passes, and a real step of AdamW on gradients
that are always the same. So a machine with few cores can tell what synchronization adds to it.
"""

import argparse
import json
import pathlib
import threading
import time

import torch
from torch import nn

VOCABULARY, POSITIONS = 50257, 1024


class Gpt2Tensors(nn.Module):
    """The tensors of transformers' GPT2LMHeadModel, without what computes with them."""

    def __init__(self, layers, width):
        super().__init__()

        def add(name, *shape):
            module = self
            *path, last = name.split(".")
            for part in path:
                if not hasattr(module, part):
                    module.add_module(part, nn.Module())
                module = getattr(module, part)
            module.register_parameter(last, nn.Parameter(torch.empty(shape).normal_(std=0.02)))

        add("transformer.wte.weight", VOCABULARY, width)
        add("transformer.wpe.weight", POSITIONS, width)
        for layer in range(layers):
            for name, *shape in (("ln_1", width), ("attn.c_attn", width, 3 * width),
                                 ("attn.c_proj", width, width), ("ln_2", width),
                                 ("mlp.c_fc", width, 4 * width), ("mlp.c_proj", 4 * width, width)):
                add(f"transformer.h.{layer}.{name}.weight", *shape)
                add(f"transformer.h.{layer}.{name}.bias", shape[-1])
        add("transformer.ln_f.weight", width)
        add("transformer.ln_f.bias", width)


def resident_bytes():
    """Anonymous memory of this process: without programs and libraries."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon")


class MemoryWatch:
    """Samples resident_bytes until it is stopped."""

    def __init__(self):
        self.samples = [resident_bytes()]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self):
        while not self._stop.wait(0.05):
            self.samples.append(resident_bytes())

    def stop(self):
        self._stop.set()
        self._thread.join()
        return sorted(self.samples)


def training_cpu_s():
    """Processor time of this thread, and of the one on which the package waits for its calls: while one
    is busy the other waits."""
    total = time.thread_time()
    for thread in threading.enumerate():
        if thread.name == "causeway":
            with open(f"/proc/self/task/{thread.native_id}/schedstat", encoding="ascii") as figures:
                total += int(figures.read().split()[0]) * 1e-9
    return total


def make_trainer(arguments):
    torch.manual_seed(1)
    model = Gpt2Tensors(arguments.layers, arguments.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()  # Makes its state, so that what follows is Causeway's alone.
    return model, optimizer


def compute(optimizer, step_s):
    begin = time.monotonic()
    optimizer.step()
    time.sleep(max(0.0, step_s - (time.monotonic() - begin)))


def figures_of(steps, due):
    """Of steps with something due, or with nothing."""
    chosen = [(computing, in_causeway) for computing, in_causeway, is_due in steps if is_due is due]
    if not chosen:
        return {}
    spent = sorted(in_causeway for _, in_causeway in chosen)
    return {"share": sum(spent) / sum(map(sum, chosen)), "seconds": spent[len(spent) // 2],
            "count": len(spent)}


def site(arguments):
    import causeway.torch as cw
    from causeway import _library

    model, optimizer = make_trainer(arguments)
    before = resident_bytes()
    joined = cw.join(arguments.coordinator, model, id=arguments.id, tokens_per_step=1024)
    library = _library.load()
    steps = []
    empty_calls = []
    cpu_s = 0.0
    begin = time.monotonic()
    with joined:
        join_s = time.monotonic() - begin
        watch = MemoryWatch()
        while not joined.should_stop:
            begin = time.monotonic()
            compute(optimizer, arguments.step_s)
            used = training_cpu_s()
            empty = time.monotonic()
            library.causeway_abi_version()
            computed = time.monotonic()
            empty_calls.append(computed - empty)
            joined.step()
            stepped = time.monotonic()
            cpu_s += training_cpu_s() - used
            steps.append((computed - begin, stepped - computed, bool(joined._session.touched)))
        memory = watch.stop()
        own = 2 * 4 * joined.info.arena_values
        parameters = joined.info.parameters
    summary = joined.summary()
    causeway = [in_causeway for _, in_causeway, _ in steps]
    whole = sum(computing + in_causeway for computing, in_causeway, _ in steps)
    return {
        "parameters": parameters,
        "steps": len(steps),
        "join_seconds": round(join_s, 2),
        "step_seconds": round(whole / len(steps), 4),
        "training_thread_share": sum(causeway) / whole,
        **{f"step_{name}_{kind}": value for kind in ("idle", "due")
           for name, value in figures_of(steps, kind == "due").items()},
        "empty_call_seconds": sorted(empty_calls)[len(empty_calls) // 2],
        "training_thread_cpu_seconds_per_step": cpu_s / len(steps),
        "longest_step_in_causeway_seconds": round(max(causeway), 4),
        "waited_seconds": summary.get("blocked_seconds"),
        "bytes_up": summary.get("bytes_up"),
        "bytes_down": summary.get("bytes_down"),
        "host_bytes_per_parameter": (memory[len(memory) // 2] - before) / parameters,
        "host_bytes_per_parameter_peak": (memory[-1] - before) / parameters,
        "host_bytes_per_parameter_by_account": own / parameters,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--coordinator")
    parser.add_argument("--id")
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--step_s", type=float, required=True)
    parser.add_argument("--out", required=True, help="file for the result")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    pathlib.Path(arguments.out).write_text(json.dumps(site(arguments)), encoding="utf-8")


if __name__ == "__main__":
    main()
