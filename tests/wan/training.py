"""Trains over emulated long links: real coordinator, real workers, a namespace and a link each."""

import dataclasses
import json
from pathlib import Path

from exchange import Run
import processes
from processes import json_lines


def make_data(bin_folder, folder):
    return processes.make_data(Path(folder), 60000, Path(bin_folder))


def has_joined(events, worker):
    return any(line["event"] == "worker_joined" and line["worker"] == worker
               for line in json_lines(events))


def train(network, bin_folder, folder, config, data, flags=(), timeout_s=900):
    """One training to its end, one worker per place of the network. Returns the rounds, and of every worker
    its steps (metrics.jsonl) and its summary."""
    with Run(network, bin_folder, folder, config) as run:
        coordinator = Coordinator(run.address, run.run_dir)
        workers = train_at(run, [(place, coordinator) for place in network.workers], data, flags,
                           timeout_s)
        return {"rounds": run.rounds(), "workers": workers}


@dataclasses.dataclass(frozen=True)
class Coordinator:
    """Where workers go: the run's coordinator, or a region."""

    address: str
    run_dir: Path


def train_at(run, sites, data, flags, timeout_s, once_training=lambda: None):
    """Workers at `sites`, (place, coordinator) each, to their end. Returns what train() has of them.
    flags: of all, or what gives those of a name. once_training: called when every worker has done a step."""
    workers = []
    for index, (place, coordinator) in enumerate(sites):
        name = f"worker-{index}"
        workers.append(run.start(
            place, name, run.bin / "causeway-worker", "train",
            f"--coordinator={coordinator.address}", f"--id={name}", f"--data={data}",
            f"--out={run.folder / name}", "--threads=1", *run.flags, *(flags(name) if callable(flags) else flags)))
        # Who comes first gets the first part of the data.
        events = coordinator.run_dir / "events.jsonl"
        workers[-1].wait_until(lambda name=name, events=events: has_joined(events, name),
                               "it has joined")
    outs = [run.folder / worker.name for worker in workers]
    for worker, out in zip(workers, outs):
        worker.wait_until(lambda out=out: any(line["kind"] == "step" for line in json_lines(
            out / "metrics.jsonl")), "it trains", timeout_s)
    once_training()
    for worker in workers:
        worker.wait(timeout_s)
    return [{"steps": [line for line in json_lines(out / "metrics.jsonl")
                       if line["kind"] == "step"],
             "summary": json.loads((out / "summary.json").read_text())} for out in outs]
