#!/usr/bin/python3
"""What the codecs cost in training quality: every codec with AdamW and with Muon inside.

    tests/experiments/codec_quality.py [--json] [--runs REGEX] [--seeds 1,2,3] [--steps 160]

Trains quickstart's model on quickstart's text with real processes, one coordinator and two workers,
and with quickstart's settings but for the codecs, mixing, the outer optimizer, and the number of
steps: every fragment is synchronized eight times, so H is an eighth of the steps. Prints a table,
or everything as JSON; --summary and --svg write what docs show. A series that was interrupted goes
on where it stopped. Needs the release build of causeway-coordinator and causeway-worker.
Exit status: 0; 1 if a run failed, which then has no figures; 2 for bad settings.
"""

import argparse
import json
import re
import statistics
import sys
from pathlib import Path

import training_runs
from training_runs import Series, TrainingRun, deviation, differences, intervals

from causeway_run import plots  # noqa: E402  (found by training_runs)

INNER = {"adamw": ("AdamW", {"train.optimizer": "ADAMW"}),
         "muon": ("Muon", {"train.optimizer": "MUON"})}
_FEEDBACK = {"sync.error_feedback": "true"}


def _codecs(up: str, down: str) -> dict[str, str]:
    return {"sync.codec_up": up, "sync.codec_down": down}


# Name, what docs call it, what it changes, and whether it is run with all seeds.
SETTINGS = (
    ("fp32", "fp32 both ways", _codecs("FP32", "FP32"), True),
    ("int4-fp32", "int4 up, fp32 down", _codecs("INT4", "FP32"), True),
    ("int4", "int4 both ways", _codecs("INT4", "INT4"), True),
    ("int4-feedback", "int4 both ways, feedback", _codecs("INT4", "INT4") | _FEEDBACK, True),
    ("e3m0", "e3m0 both ways", _codecs("E3M0", "E3M0"), True),
    ("lm2", "lm2 up with feedback, int4 down", _codecs("LM2", "INT4") | _FEEDBACK, True),
)
LABELS = {name: label for name, label, _, _ in SETTINGS}
PLOT_LABELS = {
    "int4-fp32": "int4 up, fp32 down", "int4": "int4 both ways",
    "int4-feedback": "int4 with feedback", "e3m0": "e3m0 both ways",
    "lm2": "lm2 up, int4 down",
}
PLOT_LIMITS = {"adamw": (-0.1, 0.2), "muon": (-0.02, 0.04)}
BASELINE = "fp32"
WORKERS = 2
SYNCS = 8
LEAST_STEPS = 5 * SYNCS  # Five fragments are sent after steps of their own.


def plan(seeds: list[int], steps: int) -> list[TrainingRun]:
    """All runs, seed by seed: a series that ends early has all settings of the first seeds."""
    shared = {
        "sync.mixing": "0.5", "outer.optimizer": "NESTEROV", "outer.learning_rate": "0.7",
        "outer.momentum": "0.6",
        "sync.steps_between_syncs": str(steps // SYNCS),
        "train.evaluate_every_steps": "0",  # Before the first step and after the last.
        "train.evaluation_sequences": "128",  # Four times quickstart's: a steadier figure.
    }
    return [
        TrainingRun(f"{inner}-{name}-seed{seed}", seed, {"inner": inner, "setting": name},
                    shared | INNER[inner][1] | changes)
        for seed in seeds for name, _, changes, every_seed in SETTINGS for inner in INNER
        if every_seed or seed == seeds[0]
    ]


def summarize(results: list[dict]) -> list[dict]:
    """A row for each inner optimizer and setting that has results."""
    rows = []
    for inner in INNER:
        own = [result for result in results if result["inner"] == inner]
        losses = {name: {r["seed"]: r["eval_loss"] for r in own if r["setting"] == name}
                  for name in LABELS}
        apart = {"minus_fp32": _compare(losses, BASELINE), "minus_int4": _compare(losses, "int4")}
        for name, by_seed in losses.items():
            if not by_seed:
                continue
            first = next(result for result in own if result["setting"] == name)
            rows.append({
                "inner": inner, "setting": name, "seeds": len(by_seed),
                "mean_loss": statistics.fmean(by_seed.values()),
                "standard_deviation": deviation(list(by_seed.values())),
                "losses": {str(seed): loss for seed, loss in sorted(by_seed.items())},
                "bytes_per_param_per_sync": first["bytes_per_param_per_sync"],
                **{key: entries[name] for key, entries in apart.items() if name in entries},
            })
    return rows


def _compare(losses: dict[str, dict[int, float]], baseline: str) -> dict[str, dict]:
    """Mean difference of each setting from the baseline, with its interval. All are taken to spread
    alike."""
    apart = {name: differences(by_seed, losses[baseline]) for name, by_seed in losses.items()
             if name != baseline}
    widths = dict(zip(apart, intervals(list(apart.values()))))
    return {name: {"mean": statistics.fmean(values), "interval_95": widths[name]}
            for name, values in apart.items() if values}


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form).replace("-", "\N{MINUS SIGN}")


def _apart(row: dict, key: str) -> str:
    if key not in row:
        return "-"
    apart = row[key]
    if apart["interval_95"] is None:
        return f"{_number(apart['mean'], '+.4f')}"
    clear = abs(apart["mean"]) > apart["interval_95"]
    text = f"{_number(apart['mean'], '+.4f')} ± {apart['interval_95']:.4f}"
    return f"**{text}**" if clear else text


def table(rows: list[dict]) -> str:
    """Markdown. Differences whose 95 % interval does not contain zero are bold."""
    head = ["inside", "codecs", "seeds", "held-out loss", "spread", "minus fp32, same seed",
            "minus int4, same seed", "bytes per parameter and sync, up / down"]
    lines = ["| " + " | ".join(head) + " |", "| --- | --- |" + " ---: |" * (len(head) - 2)]
    for row in rows:
        moved = row["bytes_per_param_per_sync"]
        lines.append("| " + " | ".join([
            INNER[row["inner"]][0], LABELS[row["setting"]], str(row["seeds"]),
            f"{row['mean_loss']:.4f}", _number(row["standard_deviation"], ".4f"),
            _apart(row, "minus_fp32"), _apart(row, "minus_int4"),
            f"{moved['up']:.3f} / {moved['down']:.3f}"]) + " |")
    return "\n".join(lines)


def plot(rows: list[dict]) -> str:
    """Differences from fp32, as the text of an SVG file."""
    panels = []
    for inner, (title, _) in INNER.items():
        own = {row["setting"]: row for row in rows if row["inner"] == inner}
        baseline = own.get(BASELINE, {"losses": {}})["losses"]
        shown = [(PLOT_LABELS[name],
                  [loss - baseline[seed] for seed, loss in row["losses"].items() if seed in baseline],
                  row["minus_fp32"]["interval_95"])
                 for name, row in own.items() if "minus_fp32" in row]
        if shown:
            panels.append((f"{title} inside", shown, PLOT_LIMITS[inner]))
    return plots.standalone(plots.compare_differences(
        panels, "held-out loss minus that of fp32 with the same seed, nats per byte"))


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    root = training_runs.ROOT
    parser = argparse.ArgumentParser(
        prog="codec_quality.py", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, default=root / "build" / "release" / "bin",
                        help="folder of the two programs (default: the release build)")
    parser.add_argument("--out", type=Path, default=root / "out-experiments" / "codec_quality",
                        help="where runs and their logs go")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--seeds", default="1,2,3", help="comma-separated")
    parser.add_argument("--runs", default="", metavar="REGEX",
                        help="only runs in whose name it is found; names are like muon-int4-seed1")
    parser.add_argument("--finished", action="store_true",
                        help="train nothing: sum up the runs that have finished")
    parser.add_argument("--list", action="store_true", help="print the runs' names and stop")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--summary", type=Path, help="where the JSON goes, too")
    parser.add_argument("--svg", type=Path, help="where the plot goes")
    parsed = parser.parse_args(arguments)
    if not re.fullmatch(r"\d{1,15}(,\d{1,15})*", parsed.seeds):
        parser.error(f"--seeds must be whole numbers with commas, not '{parsed.seeds}'")
    parsed.seeds = list(dict.fromkeys(int(seed) for seed in parsed.seeds.split(",")))
    if parsed.steps < LEAST_STEPS:
        parser.error(f"--steps must be at least {LEAST_STEPS}, not {parsed.steps}")
    try:
        re.compile(parsed.runs)
    except re.error as error:
        parser.error(f"--runs: '{parsed.runs}' is no regular expression: {error}")
    for program in ("causeway-coordinator", "causeway-worker"):
        if not (parsed.programs / program).exists():
            parser.error(f"there is no {parsed.programs / program}: build it, or name --programs")
    return parsed


def main(arguments: list[str]) -> int:
    parsed = parse_arguments(arguments)
    runs = training_runs.select(plan(parsed.seeds, parsed.steps), parsed.runs)
    if parsed.list:
        print("\n".join(run.name for run in runs))
        return 0
    training_runs.stop_on_signals()
    series = Series(parsed.programs, parsed.out, parsed.steps, WORKERS)
    try:
        if parsed.finished:
            results, failures = series.results(runs), []
        else:
            results, failures = series.run_all(runs)
    except KeyboardInterrupt:
        print("codec_quality: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    rows = summarize(results)
    document = {
        "command": f"tests/experiments/codec_quality.py --steps {parsed.steps} "
                   f"--seeds {','.join(map(str, parsed.seeds))}",
        "steps": parsed.steps,
        "workers": WORKERS,
        "parameters": max((result["parameters"] for result in results), default=None),
        "least_syncs_per_fragment": min((r["syncs_per_fragment"] for r in results), default=None),
        "runs_finished": len(results),
        "runs_planned": len(runs),
        "training_minutes": round(sum(result["elapsed_seconds"] for result in results) / 60, 1),
        "rows": rows,
        "failures": failures,
    }
    text = json.dumps(document, indent=1)
    if parsed.summary:
        parsed.summary.parent.mkdir(parents=True, exist_ok=True)
        parsed.summary.write_text(text + "\n", encoding="utf-8")
    if parsed.svg and rows:
        parsed.svg.parent.mkdir(parents=True, exist_ok=True)
        parsed.svg.write_text(plot(rows), encoding="utf-8")
    print(text if parsed.json else table(rows))
    for failure in failures:
        print(f"codec_quality: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
