"""Measures what being a site costs a PyTorch trainer.

    tests/python/cost [--json] [--steps N] [--step_s S] [--layers N --width N] [--sites N]

Trainers of GPT-2's shape (124M parameters) are sites of a run with H 30 and 8 fragments, four bits both
ways. A step is a sleep, which stands for forward and backward passes, and a real step of AdamW on gradients that are
always the same: `step` in the result says so. So a machine with few cores can tell what synchronization adds to it.
Of each figure the largest of all sites:

  training_thread_share     of the wall time that the training thread spends in Causeway. Other work on
                            the machine counts, so training_thread_cpu_seconds_per_step stands beside it
  step_share_idle, step_share_due
                            the same of steps at which nothing was sent or merged, and of the others;
                            step_seconds_idle and _due: the median of what one spends in Causeway,
                            step_count_idle and _due: how many there were;
                            empty_call_seconds: what the least call into the library takes there (median)
  host_bytes_per_parameter  of what the process of a site occupies more than before it joined, by its
                            resident memory between steps (median); `_peak` the most, `_by_account`
                            the arena and the published values

Exit status 77 if there is no Python with torch.
"""

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))

from cluster import BIN, Cluster  # noqa: E402

CONFIG = """\
run_name: "cost"
train {{ steps: {steps} }}
sync {{
  pattern: BALANCED
  fragments: {fragments}
  steps_between_syncs: {distance}
  overlap_steps: {overlap}
  mixing: 0.5
  codec_up: INT4
  codec_down: INT4
}}
outer {{ optimizer: NESTEROV learning_rate: 0.7 momentum: 0.6 }}
membership {{ start_workers: {sites} max_workers: {sites} }}
"""
FRAGMENTS, DISTANCE, OVERLAP = 8, 30, 4
PATIENCE_S = 1200
VOCABULARY, POSITIONS = 50257, 1024


def parse_arguments():
    parser = argparse.ArgumentParser(prog="tests/python/cost", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--coordinator", "--id"):  # Of the process of one site.
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")
    parser.add_argument("--steps", type=int, default=45)
    parser.add_argument("--step_s", type=float, default=1.0)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--sites", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.steps < DISTANCE:
        parser.error(f"--steps must be at least {DISTANCE}, the distance of two syncs")
    return arguments


def gpt2_shapes(layers, width):
    """The tensors of transformers' GPT2LMHeadModel."""
    yield "transformer.wte.weight", (VOCABULARY, width)
    yield "transformer.wpe.weight", (POSITIONS, width)
    for layer in range(layers):
        for name, *shape in (("ln_1", width), ("attn.c_attn", width, 3 * width),
                             ("attn.c_proj", width, width), ("ln_2", width),
                             ("mlp.c_fc", width, 4 * width), ("mlp.c_proj", 4 * width, width)):
            yield f"transformer.h.{layer}.{name}.weight", shape
            yield f"transformer.h.{layer}.{name}.bias", shape[-1:]
    yield "transformer.ln_f.weight", (width,)
    yield "transformer.ln_f.bias", (width,)


def resident_bytes():
    """Anonymous memory of this process: without programs and libraries."""
    for line in Path("/proc/self/status").read_text().splitlines():
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
    """What one site measures."""
    import torch

    import causeway.torch as cw
    from causeway import _library

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = {name: torch.nn.Parameter(torch.empty(shape).normal_(std=0.02))
             for name, shape in gpt2_shapes(arguments.layers, arguments.width)}
    optimizer = torch.optim.AdamW(model.values(), lr=1e-4)
    for parameter in model.values():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()  # Makes its state, so that what follows is Causeway's alone.
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


def train(arguments):
    """A run that gets its model from the first site. Returns what each site measured."""
    with Cluster() as cluster:
        coordinator = cluster.start_coordinator(
            CONFIG.format(steps=arguments.steps, fragments=FRAGMENTS, distance=DISTANCE, overlap=OVERLAP,
                          sites=arguments.sites),
            "--initial=first-site", "--http=off", "--durability=none", model="")
        names = [f"site-{index}" for index in range(arguments.sites)]
        variables = {"PYTHONPATH": str(ROOT / "worker" / "python"), "OMP_NUM_THREADS": "1",
                     "CAUSEWAY_SITE_LIBRARY": str(BIN.resolve() / "libcauseway_site.so")}
        trainers = [cluster.start(
            f"{name}.log", sys.executable, "-B", __file__, f"--coordinator={cluster.address}", f"--id={name}",
            *sys.argv[1:], variables=variables) for name in names]
        for process in (*trainers, coordinator):
            if process.child.wait(PATIENCE_S) != 0:
                sys.exit(f"tests/python/cost: {process.log_path.name}:\n{process.log()[-2000:]}")
        mismatches = cluster.summary()["hash_mismatches"]
        if mismatches:
            sys.exit(f"tests/python/cost: {mismatches} hashes were not equal")
        return [json.loads(next(line for line in trainer.log().splitlines() if line.startswith("{")))
                for trainer in trainers]


def main():
    arguments = parse_arguments()
    if arguments.coordinator:
        print(json.dumps(site(arguments)))
        return
    load, begin = os.getloadavg()[0], time.monotonic()
    sites = train(arguments)
    result = {
        "step": f"a sleep and a real AdamW step on constant gradients, {arguments.step_s} s together",
        "steps_between_syncs": DISTANCE, "overlap_steps": OVERLAP, "fragments": FRAGMENTS,
        "sites": arguments.sites, "cores": os.cpu_count(), "load_average_before": load,
        "load_average_after": os.getloadavg()[0], "elapsed_seconds": round(time.monotonic() - begin, 1),
        **{name: max(site[name] for site in sites) for name in sites[0]},
    }
    print(json.dumps(result) if arguments.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
