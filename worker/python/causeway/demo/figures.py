"""The figures that a report states, computed from what a run wrote."""

from __future__ import annotations

from causeway.demo import config
from causeway.demo.output import Run

_BF16_BYTES = 2


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


def _fragments(run: Run) -> int:
    seen = max((row["fragment"] for row in run.rounds), default=-1) + 1
    return seen or int(run.fields.get("sync.fragments", "1"))


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
    fragments = _fragments(run)
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
        "mode": config.mode_of(run.fields),
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
