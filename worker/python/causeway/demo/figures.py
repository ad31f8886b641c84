"""The figures that a report states, computed from what a run wrote."""

from __future__ import annotations

from causeway.demo import config
from causeway.demo.output import Run, Worker

_BF16_BYTES = 2


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _ratio(numerator, denominator) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None


def _last(worker: Worker, name: str):
    """From the summary, else from the last step's metrics."""
    if name in worker.summary:
        return worker.summary[name]
    rows = worker.rows("step")
    return rows[-1].get(name) if rows else None


def _steps(worker: Worker) -> int:
    if "steps" in worker.summary:
        return worker.summary["steps"]
    rows = worker.rows("step")
    return rows[-1]["step"] if rows else 0


def _wall_seconds(worker: Worker) -> float | None:
    if "wall_seconds" in worker.summary:
        return worker.summary["wall_seconds"]
    rows = worker.rows("start")[:1] + worker.rows("step")
    return rows[-1]["unix_s"] - rows[0]["unix_s"] if len(rows) > 1 else None


def _utilization(worker: Worker) -> float | None:
    if "compute_utilization" in worker.summary:
        return worker.summary["compute_utilization"]
    rows = worker.rows("step")
    return _ratio(rows[-1]["compute_s"], _wall_seconds(worker)) if rows else None


def _tokens_per_second(worker: Worker) -> float | None:
    if "tokens_per_second" in worker.summary:
        return worker.summary["tokens_per_second"]
    rows = worker.rows("step")
    return _ratio(rows[-1]["tokens"], _wall_seconds(worker)) if rows else None


def _eval_curve(run: Run) -> list[list[float]]:
    """[[step, loss], ...] of the published parameters, by step."""
    curve = {}
    for worker in run.workers:
        for row in worker.rows("eval"):
            curve[row["step"]] = row["eval_loss"]
        if "eval_loss" in worker.summary:
            curve[_steps(worker)] = worker.summary["eval_loss"]
    return [[step, loss] for step, loss in sorted(curve.items())]


def _trainer(run: Run) -> str | None:
    """"causeway", "pytorch", both of them, or None if no worker came to its end."""
    names = {worker.summary.get("trainer", "causeway") for worker in run.workers if worker.summary}
    return " and ".join(sorted(names)) or None


def _parameters(run: Run) -> int | None:
    sources = [run.coordinator, *(worker.summary for worker in run.workers),
               *(row for worker in run.workers for row in worker.rows("start"))]
    return next((source["parameters"] for source in sources if "parameters" in source), None)


def _fragments(run: Run) -> int:
    seen = max((row["fragment"] for row in run.rounds), default=-1) + 1
    return seen or int(run.fields.get("sync.fragments", "1"))


def _bytes_per_param_per_sync(run: Run, parameters: int | None, fragments: int) -> dict:
    """Bytes that one worker moves to synchronize every parameter once, per parameter.

    Up: what the rounds brought in, per contribution. Down: what a round's answer is; what a worker
    fetches when it joins is no part of a sync.
    """
    totals = {"up": [0, 0], "down": [0, 0]}
    for row in run.rounds:
        contributors = len(row.get("contributors", []))
        totals["up"][0] += row.get("bytes_in", 0)
        totals["up"][1] += contributors
        totals["down"][0] += row.get("bytes_out", 0)
        totals["down"][1] += 1
    result = {}
    for direction, (moved, objects) in totals.items():
        per_fragment = _ratio(moved, objects)
        per_sync = None if per_fragment is None else per_fragment * fragments
        result[direction] = _ratio(per_sync, parameters)
    return result


def compute(run: Run) -> dict:
    """What report.json holds. A figure that the run did not get to is None."""
    parameters = _parameters(run)
    fragments = _fragments(run)
    curve = _eval_curve(run)
    steps = max((_steps(worker) for worker in run.workers), default=0)
    utilizations = {w.name: _utilization(w) for w in run.workers if _utilization(w) is not None}
    rates = {w.name: _tokens_per_second(w) for w in run.workers
             if _tokens_per_second(w) is not None}
    walls = [wall for w in run.workers if (wall := _wall_seconds(w)) is not None]
    bytes_up = {w.name: _last(w, "bytes_up") or 0 for w in run.workers}
    bytes_down = {w.name: _last(w, "bytes_down") or 0 for w in run.workers}
    # Bytes that workers fetched when they joined, which bytes_down includes.
    accounts = run.coordinator.get("workers", {})
    state_bytes = {w.name: accounts.get(w.name, {}).get("state_bytes_down") for w in run.workers}
    blocked = {w.name: _last(w, "blocked_seconds" if w.summary else "blocked_s")
               for w in run.workers}
    # Gradients up and their mean down, in bf16, by one worker.
    one_way = None if parameters is None else _BF16_BYTES * parameters * steps
    moved = _mean([bytes_up[name] + bytes_down[name] for name in bytes_up])
    initial = next((w.summary["initial_loss"] for w in run.workers
                    if w.summary.get("initial_loss") is not None), None)
    if initial is None and curve and curve[0][0] == 0:
        initial = curve[0][1]
    return {
        "mode": config.mode_of(run.fields) if run.fields else run.coordinator.get("mode"),
        "trainer": _trainer(run),
        "run_id": run.coordinator.get("run_id"),
        "params": parameters,
        "steps": steps,
        "workers": len(run.workers),
        "initial_loss": initial,
        "eval_loss": curve[-1][1] if curve else None,
        "train_loss": {w.name: w.summary.get("train_loss") for w in run.workers},
        "tokens": sum(_last(w, "tokens") or 0 for w in run.workers),
        "tokens_per_second": sum(rates.values()) if rates else None,
        "tokens_per_second_per_worker": rates,
        "compute_utilization": {"mean": _mean(list(utilizations.values())), **utilizations},
        "blocked_seconds": blocked,
        # Time of the worker that measures the published parameters; wall_seconds excludes it.
        "evaluation_seconds": {w.name: w.summary.get("evaluation_seconds") for w in run.workers},
        "wall_seconds": max(walls, default=None),
        "rounds": len(run.rounds),
        "fragments": fragments,
        "bytes_up": bytes_up,
        "bytes_down": bytes_down,
        "state_bytes_down": state_bytes,
        "bytes_per_param_per_sync": _bytes_per_param_per_sync(run, parameters, fragments),
        "data_parallel_bytes": None if one_way is None else 2 * one_way,
        "data_parallel_bytes_up": one_way,
        "data_parallel_bytes_down": one_way,
        "data_parallel_ratio": _ratio(None if one_way is None else 2 * one_way, moved),
        "hash_checks": run.coordinator.get("hash_checks"),
        "hash_mismatches": run.coordinator.get("hash_mismatches"),
        "eval_curve": curve,
        "notes": run.notes,
    }
