#!/usr/bin/python3
"""What is left of the gap to data parallelism, over tokens per parameter and over workers.

    tests/experiments/parity_report.py --out out-experiments/study --seeds 1,2,3 \\
        --figures docs/figures/parity

Reads what study.py has trained of `tuning` and `gap` at the scales small-600 .. small-20k. The baseline
of a scale is the best data-parallel variant over the seeds that all of these have, among those with a seed
that claims rest on. A scale without such a run is reported with the seeds it has. Differences are
taken seed by seed, of the mean of the evaluations in the last tenth of a run.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import training_runs
import variants
from training_runs import deviation, differences, intervals, shown_difference, signed

_TAIL = 0.9  # Evaluations after this share of the steps count.
_TUNED = tuple(name for name in variants.EXPERIMENTS["tuning"].variants
               if variants.VARIANTS[name].plain)
_GAP = variants.EXPERIMENTS["gap"].variants
_REPORTED = tuple(dict.fromkeys((*_TUNED, *_GAP, *variants.EXPERIMENTS["tuning"].variants)))
# Lines of the figure: over tokens per parameter, and over workers at the longest of the scales that
# have most of these.
_OVER_TOKENS = ("streaming", "mean", "mean-keep")
_OVER_STEPS = ("plain-mu0.9", *_OVER_TOKENS, "mean-rates0.5")
_SETTLED = 0.2  # The share of a run before which losses fall so fast that differences say nothing.
_OVER_WORKERS = {
    variants.VARIANTS["mean"].label: ("mean", "mean-M4", "mean-M8", "mean-M16"),
    variants.VARIANTS["mean-H10"].label: ("mean-H10", "mean-M4-H10", "mean-M8-H10", "mean-M16-H10"),
    **{f"mean, {codec} both ways, H {period}": tuple(f"mean-M{workers}-{codec}-H{period}" for workers in (2, 4, 8, 16))
       for codec, period in variants.FEWER_BITS},
    variants.VARIANTS["mean-keep"].label: ("mean-keep",)}


def tail_loss(result: dict) -> float:
    """The mean held-out loss of the evaluations in the last tenth of the run."""
    last = result["eval_curve"][-1][0]
    return statistics.fmean(loss for step, loss in result["eval_curve"] if step > _TAIL * last)


def load(out: Path) -> list[dict]:
    """The results of all runs in the folder at the scales of prose."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("*/result.json"))]
    return [result for result in results
            if result["scale"] in variants.SCALES and variants.SCALES[result["scale"]].prose]


def _by_seed(results: list[dict], variant: str) -> dict[int, float]:
    return {result["seed"]: tail_loss(result) for result in results if result["variant"] == variant}


def best_data_parallel(results: list[dict]) -> str | None:
    """Of one scale and inner optimizer: the data-parallel variant with the lowest mean loss over the
    seeds that all of them have. Choosing by seeds that a claim rests on favours data parallelism."""
    losses = {name: own for name in _TUNED if (own := _by_seed(results, name))}
    shared = set.intersection(*(set(own) for own in losses.values())) if losses else set()
    if not shared:
        return "plain" if "plain" in losses else None
    return min(losses, key=lambda name: statistics.fmean(losses[name][seed] for seed in shared))


def _row(own: list[dict], name: str, tails: dict[int, float], apart: list[float],
         interval: float | None, chance: float | None) -> dict:
    moved = {way: statistics.fmean(result["bytes_per_param_per_sync"][way] * result["syncs_per_fragment"]
                                   / result["steps"] for result in own) for way in ("up", "down")}
    mean = statistics.fmean(apart) if apart else None
    limit = interval if interval is not None else chance
    return {
        "variant": name, "label": variants.EXPERIMENTS["gap"].label(name),
        "workers": variants.VARIANTS[name].workers, "seeds": sorted(tails), "losses": tails,
        "mean_loss": statistics.fmean(tails.values()), "standard_deviation": deviation(list(tails.values())),
        "minus_baseline": mean, "by_seed": apart, "interval_95": interval,
        "clear": mean is not None and limit is not None and abs(mean) > limit,
        "bytes_per_parameter_and_step": moved,
        "tokens_per_parameter": own[0]["tokens"] / own[0]["parameters"],
        "curves": {str(result["seed"]): result["eval_curve"] for result in own},
    }


def summarize(results: list[dict], seeds: list[int]) -> list[dict]:
    """A report for each scale and inner optimizer that has something to compare."""
    reports = []
    for scale in variants.SCALES.values():
        for inner in variants.INNER:
            here = [result for result in results
                    if result["scale"] == scale.name and result["inner"] == inner]
            claimed = [result for result in here if result["seed"] in seeds]
            if not any(_by_seed(claimed, name) for name in _TUNED):
                claimed = here
            known = {result["variant"] for result in claimed}
            baseline = best_data_parallel([result for result in here if result["variant"] in known])
            if baseline is None:
                continue
            base = _by_seed(claimed, baseline)
            present = [name for name in _REPORTED if _by_seed(claimed, name)]
            apart = {name: differences(_by_seed(claimed, name), base)
                     for name in present if name != baseline}
            widths = dict(zip(apart, intervals(list(apart.values()))))
            several = [name for name in apart if len(apart[name]) > 1]
            chance = widths[several[0]] * len(apart[several[0]]) ** 0.5 if several else None
            reports.append({
                "scale": scale.name, "inner": inner, "steps": scale.steps, "baseline": baseline,
                "range_of_one_difference_95": chance,
                "rows": [_row([result for result in claimed if result["variant"] == name], name,
                              _by_seed(claimed, name), apart.get(name, []), widths.get(name), chance)
                         for name in present],
            })
    return reports


def _difference(row: dict) -> str:
    return shown_difference(row["minus_baseline"], row["interval_95"], row["clear"])


def table(reports: list[dict]) -> str:
    """Markdown: one row for each variant, scale after scale."""
    head = ["tokens per parameter", "inside", "", "M", "seeds", "held-out loss", "minus data parallel",
            "by seed", "bytes per parameter and step, up / down"]
    lines = ["| " + " | ".join(head) + " |", "| ---: | --- | --- |" + " ---: |" * (len(head) - 3)]
    for report in reports:
        for row in report["rows"]:
            moved = row["bytes_per_parameter_and_step"]
            plain = variants.VARIANTS[row["variant"]].plain
            lines.append("| " + " | ".join([
                f"{row['tokens_per_parameter']:.3g}", variants.INNER[report["inner"]], row["label"],
                str(row["workers"]), ", ".join(map(str, row["seeds"])), f"{row['mean_loss']:.4f}", _difference(row),
                ", ".join(signed(value) for value in row["by_seed"]) or "-",
                "2 / 2 (bf16)" if plain else f"{moved['up']:.4f} / {moved['down']:.4f}"]) + " |")
    return "\n".join(lines)


def worker_table(report: dict) -> str:
    """Markdown: the gap for each number of workers, the mean of so many seeds, and what it moves in bytes per
    parameter and step."""
    rows = {row["variant"]: row for row in report["rows"] if row["by_seed"]}
    columns = {label: {rows[name]["workers"]: rows[name] for name in members if name in rows}
               for label, members in _OVER_WORKERS.items()}
    columns = {label: found for label, found in columns.items() if found}
    lines = ["| workers | " + " | ".join(columns) + " |", "| ---: |" + " ---: |" * len(columns)]
    for workers in sorted({count for found in columns.values() for count in found}):
        lines.append(f"| {workers} | " + " | ".join(
            f"{_difference(found[workers])} ({len(found[workers]['by_seed'])})" if workers in found else "-"
            for found in columns.values()) + " |")
    moved = [next(iter(found.values()))["bytes_per_parameter_and_step"] for found in columns.values()]
    lines.append("| bytes up | " + " | ".join(f"{bytes_['up']:.4f}" for bytes_ in moved) + " |")
    return "\n".join(lines)


def _point(row: dict, place: float, chance: float | None) -> tuple[float, float, float | None]:
    width = row["interval_95"] if row["interval_95"] is not None else chance
    return place, row["minus_baseline"], width


def plot(reports: list[dict], inner: str = "muon") -> str | None:
    """The gap over tokens per parameter and over workers, as the text of an SVG file."""
    reports = [report for report in reports if report["inner"] == inner]
    tokens: dict[str, list] = {}
    workers: dict[str, list] = {}
    for report in reports:
        rows = {row["variant"]: row for row in report["rows"] if row["minus_baseline"] is not None}
        chance = report["range_of_one_difference_95"]
        for name in _OVER_TOKENS:
            if name in rows:
                tokens.setdefault(rows[name]["label"], []).append(
                    _point(rows[name], rows[name]["tokens_per_parameter"], chance))
    counts = [sum(row["variant"] in {name for names in _OVER_WORKERS.values() for name in names}
                  for row in report["rows"]) for report in reports]
    at = max(zip(counts, reports), key=lambda pair: (pair[0], pair[1]["steps"]), default=(0, None))[1]
    for label, members in _OVER_WORKERS.items():
        for row in at["rows"] if at else ():
            if row["variant"] in members and row["minus_baseline"] is not None:
                workers.setdefault(label, []).append(
                    _point(row, row["workers"], at["range_of_one_difference_95"]))
    panels = []
    if len({place for points in tokens.values() for place, _, _ in points}) > 1:
        panels.append(("M = 2, over tokens per parameter", tokens, True))
    if not reports:
        return None
    fullest = _fullest(reports)
    if steps := gap_curves(fullest):
        labels = variants.EXPERIMENTS["gap"].label
        panels.append((f"M = 2, over the {fullest['steps']} steps of a run",
                       {labels(name): [(*point, None) for point in points] for name, points in steps.items()},
                       False))
    if any(len(points) > 1 for points in workers.values()):
        tokens_each = at["rows"][0]["tokens_per_parameter"]
        panels.append((f"over workers M, {tokens_each:.2g} tokens per parameter", workers, True))
    if not panels:
        return None
    import plots  # Needs matplotlib, which tables do without.

    return plots.standalone(plots.compare_gaps(panels, "gap, nats per byte"))


def _fullest(reports: list[dict]) -> dict:
    """The one with the most variants; of several the longest."""
    return max(reports, key=lambda report: (len(report["rows"]), report["steps"]))


def gap_curves(report: dict) -> dict[str, list[tuple[int, float]]]:
    """By variant: how far it is from the baseline at each evaluation, the mean of the seeds both have."""
    curves = {row["variant"]: row["curves"] for row in report["rows"]}
    base = curves.get(report["baseline"], {})
    gaps = {}
    for name in _OVER_STEPS:
        seeds = sorted(curves.get(name, {}).keys() & base.keys())
        if name == report["baseline"] or not seeds:
            continue
        gaps[name] = [(step, statistics.fmean(curves[name][seed][i][1] - base[seed][i][1] for seed in seeds))
                      for i, (step, _) in enumerate(base[seeds[0]]) if step >= _SETTLED * report["steps"]]
    return gaps


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="parity_report.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=training_runs.ROOT / "out-experiments" / "study",
                        help="where study.py's runs are")
    parser.add_argument("--seeds", default="1,2,3", help="those that claims rest on")
    parser.add_argument("--figures", type=Path, help="where JSON and the plot go")
    parsed = parser.parse_args(arguments)
    reports = summarize(load(parsed.out), [int(seed) for seed in parsed.seeds.split(",")])
    if not reports:
        print(f"parity_report: no runs of the prose scales in {parsed.out}; study.py trains them",
              file=sys.stderr)
        return 1
    if parsed.figures:
        parsed.figures.mkdir(parents=True, exist_ok=True)
        (parsed.figures / "parity.json").write_text(json.dumps(reports, indent=1) + "\n", encoding="utf-8")
        if svg := plot(reports):
            (parsed.figures / "gap.svg").write_text(svg, encoding="utf-8")
    print(table(reports), worker_table(_fullest(reports)), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
