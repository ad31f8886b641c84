"""The figures that a report states, computed from what a run wrote."""

from __future__ import annotations

from causeway.demo import config
from causeway.demo.output import Run, Worker

_BF16_BYTES = 2


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _ratio(numerator, denominator) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None


def _facts(worker: Worker) -> dict:
    """What its summary says or, of a worker that was cut short, its last step's metrics."""
    rows = worker.rows("step")
    if not rows:
        return worker.summary
    last, timed = rows[-1], worker.rows("start")[:1] + rows
    wall = timed[-1]["unix_s"] - timed[0]["unix_s"] if len(timed) > 1 else None
    return {"steps": last["step"], "tokens": last.get("tokens"), "wall_seconds": wall,
            "bytes_up": last.get("bytes_up"), "bytes_down": last.get("bytes_down"),
            "blocked_seconds": last.get("blocked_s"),
            "compute_utilization": _ratio(last.get("compute_s"), wall),
            "tokens_per_second": _ratio(last.get("tokens"), wall), **worker.summary}


def _eval_curve(run: Run) -> list[list[float]]:
    """[[step, loss], ...] of the published parameters, by step."""
    curve = {}
    for worker in run.workers:
        for row in worker.rows("eval"):
            curve[row["step"]] = row["eval_loss"]
        if "eval_loss" in worker.summary:
            curve[_facts(worker).get("steps", 0)] = worker.summary["eval_loss"]
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
    facts = {worker.name: _facts(worker) for worker in run.workers}

    def known(name: str) -> dict:
        return {worker: said[name] for worker, said in facts.items() if said.get(name) is not None}

    steps = max(known("steps").values(), default=0)
    utilizations, rates = known("compute_utilization"), known("tokens_per_second")
    bytes_up, bytes_down = ({worker: said.get(name) or 0 for worker, said in facts.items()}
                            for name in ("bytes_up", "bytes_down"))
    # Bytes that workers fetched when they joined, which bytes_down includes.
    accounts = run.coordinator.get("workers", {})
    state_bytes = {w.name: accounts.get(w.name, {}).get("state_bytes_down") for w in run.workers}
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
        "tokens": sum(known("tokens").values()),
        "tokens_per_second": sum(rates.values()) if rates else None,
        "tokens_per_second_per_worker": rates,
        "compute_utilization": {"mean": _mean(list(utilizations.values())), **utilizations},
        "blocked_seconds": {worker: said.get("blocked_seconds") for worker, said in facts.items()},
        # Time of the worker that measures the published parameters; wall_seconds excludes it.
        "evaluation_seconds": {w.name: w.summary.get("evaluation_seconds") for w in run.workers},
        "wall_seconds": max(known("wall_seconds").values(), default=None),
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
