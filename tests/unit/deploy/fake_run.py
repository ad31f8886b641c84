"""A run's folder as coordinator and workers would leave it, made up without them."""

import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "worker" / "python"))

from causeway.demo import config  # noqa: E402

PARAMETERS = 1_000_000
FRAGMENTS = {"streaming": 5, "diloco": 1, "data-parallel": 1}
PERIOD = {"streaming": 30, "diloco": 30, "data-parallel": 1}
BYTES_PER_VALUE = {"streaming": 0.53125, "diloco": 4, "data-parallel": 2}
STEP_S = 0.15
TOKENS_PER_STEP = 2048
BEGIN_UNIX_S = 1_700_000_000.0


def _write_lines(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _loss(step: int, shift: float) -> float:
    return 1.4 + 4.145 * math.exp(-step / 60) + 0.05 * math.sin(step + shift)


def write_fake_run(out: Path, mode: str = "streaming", steps: int = 300, workers: int = 2) -> None:
    """Every number is a simple function of the arguments, so that tests can say what comes out."""
    fragments, period = FRAGMENTS[mode], PERIOD[mode]
    object_bytes = int(PARAMETERS / fragments * BYTES_PER_VALUE[mode])
    names = [f"worker-{i}" for i in range(workers)]
    out.mkdir(parents=True, exist_ok=True)
    (out / "run.textproto").write_text(
        config.run_config_text(mode, steps, workers, seed=1), encoding="utf-8"
    )

    send_steps = [  # (step, fragment, round)
        (step, fragment, 1 + (step - offset) // period)
        for step in range(1, steps + 1)
        for fragment in range(fragments)
        if step >= (offset := (fragment + 1) * period // fragments) and (step - offset) % period == 0
    ]
    rounds = []
    for step, fragment, number in send_steps:
        sent = BEGIN_UNIX_S + step * STEP_S
        rounds.append({
            "unix_s": sent + 0.03, "fragment": fragment, "round": number, "contributors": names,
            "weights": [1 / workers] * workers, "send_step": step, "first_unix_s": sent,
            "closed_unix_s": sent + 0.02, "published_unix_s": sent + 0.03,
            "bytes_in": object_bytes * workers, "bytes_out": object_bytes,
            "published_hash": f"{(step * 2654435761 + fragment) % 2**64:016x}",
            "reason": "every live member contributed",
        })
    _write_lines(out / "coordinator" / "rounds.jsonl", rounds)
    (out / "coordinator" / "summary.json").write_text(json.dumps({
        "run_id": "quickstart-0123abcd", "mode": mode, "parameters": PARAMETERS,
        "fragments": fragments, "rounds": len(rounds), "hash_checks": len(rounds) * workers, "hash_mismatches": 0,
        "workers": {name: {"state_bytes_down": 4 * PARAMETERS} for name in names},
    }), encoding="utf-8")
    (out / "coordinator" / "report.html").write_text(
        '<script type="application/json" id="answers">'
        '{"config":"\\u003c!-- a: {} -->"}</script>', encoding="utf-8")

    for slot, name in enumerate(names):
        rows = [{"kind": "start", "unix_s": BEGIN_UNIX_S, "worker": name, "steps": steps,
                 "parameters": PARAMETERS, "data_slot": slot, "threads": 1}]
        moved = 0
        for step in range(1, steps + 1):
            if slot == 0 and (step == 1 or (step - 1) % 50 == 0):
                rows.append({"kind": "eval", "unix_s": BEGIN_UNIX_S + (step - 1) * STEP_S,
                             "step": step - 1, "eval_loss": _loss(step - 1, 0)})
            moved = sum(object_bytes for sent, _, _ in send_steps if sent <= step)
            rows.append({
                "kind": "step", "unix_s": BEGIN_UNIX_S + step * STEP_S, "step": step,
                "train_loss": _loss(step, slot), "tokens": step * TOKENS_PER_STEP,
                "tokens_per_second": TOKENS_PER_STEP / STEP_S,
                "compute_s": 0.95 * step * STEP_S, "blocked_s": 0.05 * step * STEP_S,
                "bytes_up": moved, "bytes_down": moved + 4 * PARAMETERS,
            })
        _write_lines(out / name / "metrics.jsonl", rows)
        summary = {
            "worker": name, "data_slot": slot, "steps": steps, "tokens": steps * TOKENS_PER_STEP,
            "wall_seconds": steps * STEP_S, "compute_seconds": 0.95 * steps * STEP_S,
            "blocked_seconds": 0.05 * steps * STEP_S, "compute_utilization": 0.95,
            "tokens_per_second": TOKENS_PER_STEP / STEP_S, "train_loss": _loss(steps, slot),
            "bytes_up": moved, "bytes_down": moved + 4 * PARAMETERS, "parameters": PARAMETERS,
        }
        if slot == 0:
            summary |= {"initial_loss": _loss(0, 0), "eval_loss": _loss(steps, 0),
                        "sample": "#include <vector>\n<script>alert(1)</script> & so on\n"}
        (out / name / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
