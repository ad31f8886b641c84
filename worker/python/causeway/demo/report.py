"""What a run comes to: report.json, report.html and sample.txt, of the folder that it leaves behind.

    coordinator/rounds.jsonl, summary.json, report.html
    worker-N/metrics.jsonl, summary.json

report.html is the one that the coordinator left when it stopped, with the sample.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from causeway.demo import units
from causeway.demo.progress import JsonLinesTail

_ANSWERS = 'id="answers">{'  # Begins what a report's page has inside.
_BF16_BYTES = 2


@dataclass
class Worker:
    """What one worker wrote."""

    name: str
    metrics: list[dict]
    summary: dict

    def rows(self, kind: str) -> list[dict]:
        return [row for row in self.metrics if row.get("kind") == kind]


@dataclass
class Run:
    """What a whole run wrote."""

    coordinator: dict
    rounds: list[dict]
    workers: list[Worker]


def load_run(folder: Path) -> Run:
    """Reads the folder of a run that came to its end. OSError: something is missing."""
    def summary(name: str) -> dict:
        return json.loads((folder / name / "summary.json").read_bytes())

    def lines(*names: str) -> list[dict]:
        return JsonLinesTail(folder.joinpath(*names)).poll()

    names = sorted((path.name for path in folder.glob("worker-*") if path.is_dir()),
                   key=lambda name: int(name.partition("-")[2]))
    return Run(summary("coordinator"), lines("coordinator", "rounds.jsonl"),
               [Worker(name, lines(name, "metrics.jsonl"), summary(name)) for name in names])


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _ratio(numerator, denominator) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None


def _eval_curve(run: Run) -> list[list[float]]:
    """[[step, loss], ...] of the published parameters, by step."""
    curve = {}
    for worker in run.workers:
        for row in worker.rows("eval"):
            curve[row["step"]] = row["eval_loss"]
        if "eval_loss" in worker.summary:
            curve[worker.summary["steps"]] = worker.summary["eval_loss"]
    return [[step, loss] for step, loss in sorted(curve.items())]


def _bytes_per_param_per_sync(run: Run, parameters: int, fragments: int) -> dict:
    """Bytes that one worker moves to synchronize every parameter once, per parameter.

    Up: what the rounds brought in, per contribution. Down: what a round's answer is; what a worker
    fetches when it joins is no part of a sync.
    """
    moved = {"up": (sum(row["bytes_in"] for row in run.rounds), sum(len(row["contributors"]) for row in run.rounds)),
             "down": (sum(row["bytes_out"] for row in run.rounds), len(run.rounds))}
    return {way: total / objects * fragments / parameters if objects else None
            for way, (total, objects) in moved.items()}


def compute(run: Run) -> dict:
    """What report.json holds but for its notes. A figure that the run did not get to is None."""
    parameters = run.coordinator["parameters"]
    fragments = run.coordinator["fragments"]
    curve = _eval_curve(run)

    def of_each(name: str) -> dict:
        return {worker.name: worker.summary.get(name) for worker in run.workers}

    steps = max(of_each("steps").values())
    utilizations, rates = of_each("compute_utilization"), of_each("tokens_per_second")
    bytes_up, bytes_down = of_each("bytes_up"), of_each("bytes_down")
    # Bytes that workers fetched when they joined, which bytes_down includes.
    accounts = run.coordinator.get("workers", {})
    state_bytes = {w.name: accounts.get(w.name, {}).get("state_bytes_down") for w in run.workers}
    # Gradients up and their mean down, in bf16, by one worker.
    one_way = _BF16_BYTES * parameters * steps
    moved = _mean([bytes_up[name] + bytes_down[name] for name in bytes_up])
    initial = next((w.summary["initial_loss"] for w in run.workers
                    if w.summary.get("initial_loss") is not None), None)
    if initial is None and curve and curve[0][0] == 0:
        initial = curve[0][1]
    return {
        "mode": run.coordinator["mode"],
        "trainer": " and ".join(sorted({w.summary.get("trainer", "causeway") for w in run.workers})),
        "run_id": run.coordinator["run_id"],
        "params": parameters,
        "steps": steps,
        "workers": len(run.workers),
        "initial_loss": initial,
        "eval_loss": curve[-1][1] if curve else None,
        "train_loss": of_each("train_loss"),
        "tokens": sum(of_each("tokens").values()),
        "tokens_per_second": sum(rates.values()),
        "tokens_per_second_per_worker": rates,
        "compute_utilization": {"mean": _mean(list(utilizations.values())), **utilizations},
        "blocked_seconds": of_each("blocked_seconds"),
        # Time of the worker that measures the published parameters; wall_seconds excludes it.
        "evaluation_seconds": of_each("evaluation_seconds"),
        "wall_seconds": max(of_each("wall_seconds").values()),
        "rounds": len(run.rounds),
        "fragments": fragments,
        "bytes_up": bytes_up,
        "bytes_down": bytes_down,
        "state_bytes_down": state_bytes,
        "bytes_per_param_per_sync": _bytes_per_param_per_sync(run, parameters, fragments),
        "data_parallel_bytes": 2 * one_way,
        "data_parallel_bytes_up": one_way,
        "data_parallel_bytes_down": one_way,
        "data_parallel_ratio": _ratio(2 * one_way, moved),
        "hash_checks": run.coordinator["hash_checks"],
        "hash_mismatches": run.coordinator["hash_mismatches"],
        "eval_curve": curve,
    }


def write_report(out: Path) -> dict:
    """Writes the files, returns what report.json holds."""
    run, notes = load_run(out), []
    sample = next((w.summary["sample"] for w in run.workers if w.summary.get("sample")), None)
    page = out / "coordinator" / "report.html"
    if page.exists():
        more = json.dumps(sample).replace("<", "\\u003c")
        text = page.read_text(encoding="utf-8").replace(_ANSWERS, f'{_ANSWERS}"sample":{more},', 1)
        (out / "report.html").write_text(text, encoding="utf-8")
    else:
        notes.append("coordinator/report.html is missing, and so there is no report.html.")
    numbers = {**compute(run), "notes": notes}
    (out / "report.json").write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    if sample is not None:
        (out / "sample.txt").write_text(sample + "\n", encoding="utf-8")
    return numbers


def tell(out: Path) -> None:
    """Writes the files, and says on the terminal what is in them and where they are."""
    print(headline(write_report(out)))
    page = out / "report.html"
    print(f"\nReport: {page if page.exists() else out / 'report.json'}")


def headline(numbers: dict) -> str:
    """A few lines for a terminal."""
    lines = []
    if numbers["eval_loss"] is not None:
        before = numbers["initial_loss"]
        since = "" if before is None else f" (before training {before:.3f})"
        lines.append(f"Held-out loss {numbers['eval_loss']:.3f} nats per byte{since}")
    lines.append(f"{units.count(numbers['tokens_per_second'])} tokens/s, "
                 f"computing {units.percent(numbers['compute_utilization']['mean'])}")
    if numbers["data_parallel_ratio"] is not None:
        up, down = (sum(numbers[key].values()) / max(1, len(numbers[key]))
                    for key in ("bytes_up", "bytes_down"))
        lines.append(
            f"{numbers['rounds']} fragment rounds, {units.size(up)} up and {units.size(down)} down "
            f"per worker; bf16 gradients at every step: "
            f"{units.size(numbers['data_parallel_bytes'])}, "
            f"{units.times(numbers['data_parallel_ratio'])} times as much"
        )
    if numbers["hash_mismatches"]:
        lines.append(f"WARNING: {numbers['hash_mismatches']} hash checks failed")
    lines.extend(f"Note: {note}" for note in numbers["notes"])
    return "\n".join(lines)
