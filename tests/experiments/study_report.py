"""Tables and JSON of the study.

A figure of one seed says little by itself. How much the losses of two dense variants with the same seed
differ by chance is taken from the headlines, which have several seeds: a single difference beyond
the 95 % range of that is marked, as is a mean whose interval does not contain zero.
"""

import json
import statistics
from pathlib import Path

import variants
from training_runs import deviation, differences, intervals, shown_difference

# Whose differences from `streaming`, seed by seed, tell what chance does.
_DENSE = ("diloco", "streaming-fp32", "overlap-fp32", "e3m0", "lm2")


def _losses(results: list[dict], inner: str) -> dict[str, dict[int, float]]:
    """By variant and seed."""
    losses: dict[str, dict[int, float]] = {}
    for result in results:
        if result["inner"] == inner:
            losses.setdefault(result["variant"], {})[result["seed"]] = result["eval_loss"]
    return losses


def noise(results: list[dict]) -> dict[str, float | None]:
    """By inner optimizer: the 95 % range of one difference of two dense variants of a seed."""
    ranges = {}
    for inner in variants.INNER:
        losses = _losses(results, inner)
        groups = [differences(losses.get(name, {}), losses.get("streaming", {}))
                  for name in _DENSE]
        groups = [group for group in groups if len(group) > 1]
        if not groups:
            ranges[inner] = None
            continue
        # Half-widths of means; of a single value they are wider by the root of the count.
        width = intervals(groups)[0]
        ranges[inner] = width * len(groups[0]) ** 0.5
    return ranges


def _minus(name: str, baseline: str, losses: dict[str, dict[int, float]],
           widths: dict[str, float | None], chance: float | None) -> dict | None:
    apart = differences(losses[name], losses.get(baseline, {}))
    if name == baseline or not apart:
        return None
    mean = statistics.fmean(apart)
    interval = widths.get(name)
    limit = interval if interval is not None else chance
    return {"mean": mean, "by_seed": apart, "interval_95": interval,
            "clear": limit is not None and abs(mean) > limit}


def _row(inner: str, name: str, label: str, own: list[dict], minus: dict | None) -> dict:
    by_seed = {result["seed"]: result["eval_loss"] for result in own}
    moved = {way: statistics.fmean(result["bytes_per_worker"][way] for result in own)
             for way in ("up", "down")}
    # The state that a worker fetches when it joins is no part of synchronizing.
    moved["down"] -= statistics.fmean(result["state_bytes_per_worker"] or 0 for result in own)
    return {
        "inner": inner, "variant": name, "label": label,
        "seeds": len(by_seed), "mean_loss": statistics.fmean(by_seed.values()),
        "standard_deviation": deviation(list(by_seed.values())),
        "losses": {str(seed): loss for seed, loss in sorted(by_seed.items())},
        "minus_baseline": minus, "bytes_per_worker": moved,
        "syncs_per_fragment": min(result["syncs_per_fragment"] for result in own),
        "rounds": own[0]["rounds"],
        "tokens": [result["tokens"] for result in own],
        "seconds": [result["elapsed_seconds"] for result in own],
        "eval_curve": own[0]["eval_curve"],
    }


def summarize(results: list[dict], experiments: list[str]) -> list[dict]:
    """A report for each experiment: its rows, by inner optimizer and variant."""
    chance = noise(results)
    first_seed = min((result["seed"] for result in results), default=None)
    reports = []
    for key in experiments:
        experiment = variants.EXPERIMENTS[key]
        rows = []
        # A mean of three seeds beside single ones of the first would compare seeds.
        counted = results if experiment.headline else [
            result for result in results if result["seed"] == first_seed]
        for inner in variants.INNER:
            losses = _losses(counted, inner)
            present = [name for name in experiment.variants if name in losses]
            if len(present) < 2:
                continue  # Nothing to compare.
            others = [name for name in present if name != experiment.baseline]
            base = losses.get(experiment.baseline, {})
            widths = dict(zip(others, intervals([differences(losses[name], base)
                                                 for name in others])))
            for name in present:
                own = [result for result in counted
                       if result["inner"] == inner and result["variant"] == name]
                rows.append(_row(inner, name, experiment.label(name), own, _minus(
                    name, experiment.baseline, losses, widths, chance[inner])))
        reports.append({"experiment": key, "title": experiment.title,
                        "baseline": experiment.baseline, "range_of_one_difference_95": chance,
                        "rows": rows})
    return reports


def overview(results: list[dict], scale: variants.Scale, planned: int,
             failures: list[str]) -> dict:
    seconds = {result["name"]: result["elapsed_seconds"] for result in results}
    return {
        "command": f"tests/experiments/study.py all --scale {scale.name}",
        "scale": scale.name,
        "parameters": max((result["parameters"] for result in results), default=None),
        "steps": scale.steps, "tokens": scale.tokens,
        "runs_planned": planned, "runs_finished": len(results),
        "minutes": round(sum(seconds.values()) / 60, 1),
        "median_seconds": statistics.median(seconds.values()) if seconds else None,
        "range_of_one_difference_95": noise(results),
        "seconds": seconds, "failures": failures,
    }


def table(report: dict) -> str:
    """Markdown."""
    baseline = variants.EXPERIMENTS[report["experiment"]].label(report["baseline"])
    head = ["inside", "", "seeds", "held-out loss", "spread", f"minus {baseline}, same seed",
            "MB per worker, up / down"]
    lines = ["| " + " | ".join(head) + " |", "| --- | --- |" + " ---: |" * (len(head) - 2)]
    for row in report["rows"]:
        moved, minus = row["bytes_per_worker"], row["minus_baseline"] or {}
        lines.append("| " + " | ".join([
            variants.INNER[row["inner"]], row["label"], str(row["seeds"]),
            f"{row['mean_loss']:.4f}", "-" if row["standard_deviation"] is None else f"{row['standard_deviation']:.4f}",
            shown_difference(minus.get("mean"), minus.get("interval_95"), minus.get("clear", False)),
            # One worker that trains plainly exchanges nothing that data parallelism would.
            "-" if variants.VARIANTS[row["variant"]].plain else
            f"{moved['up'] / 1e6:.2f} / {moved['down'] / 1e6:.2f}"]) + " |")
    return "\n".join(lines)


def write(folder: Path, reports: list[dict], summary: dict) -> None:
    """NAME.json of every experiment, and summary.json."""
    folder.mkdir(parents=True, exist_ok=True)
    for report in reports:
        text = json.dumps({"command": summary["command"], **report}, indent=1)
        (folder / f"{report['experiment']}.json").write_text(text + "\n", encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
