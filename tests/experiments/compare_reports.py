#!/usr/bin/python3
"""Compares runs: their held-out losses in one plot, their figures in one Markdown table.

    tests/experiments/compare_reports.py OUT1 OUT2 OUT3 --svg docs/figures/modes.svg

Each OUT holds a report.json. The table goes to standard output.
"""

import argparse
import json
import sys
from pathlib import Path

import training_runs  # noqa: F401  (it finds the package)

from causeway.demo import units  # noqa: E402

_UNKNOWN = "-"


def _form(value, form) -> str:
    return _UNKNOWN if value is None else form(value)


def _mean(values: dict) -> float | None:
    return sum(values.values()) / len(values) if values else None


def table(reports: list[tuple[str, dict]]) -> str:
    """Markdown."""
    head = ["run", "held-out loss", "steps", "tokens/s", "computing", "up per worker",
            "down per worker", "bytes/parameter/sync up, down", "fewer bytes than bf16 every step"]
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    for label, report in reports:
        per_sync = report["bytes_per_param_per_sync"]
        cells = [
            label,
            _form(report["eval_loss"], "{:.3f}".format),
            str(report["steps"]),
            _form(report["tokens_per_second"], units.count),
            _form(report["compute_utilization"]["mean"], units.percent),
            _form(_mean(report["bytes_up"]), units.size),
            _form(_mean(report["bytes_down"]), units.size),
            ", ".join(_form(per_sync[way], "{:.3f}".format) for way in ("up", "down")),
            _form(report["data_parallel_ratio"], lambda ratio: f"{units.times(ratio)}x"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="compare_reports.py", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("outs", type=Path, nargs="+", metavar="OUT")
    parser.add_argument("--svg", type=Path, help="where the plot goes")
    parsed = parser.parse_args(arguments)
    reports = []
    for out in parsed.outs:
        try:
            report = json.loads((out / "report.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            print(f"compare_reports: {out / 'report.json'}: {error}", file=sys.stderr)
            return 2
        reports.append([report["mode"] or out.name, report])
    labels = [label for label, _ in reports]
    for entry, out in zip(reports, parsed.outs):
        if labels.count(entry[0]) > 1:
            entry[0] = f"{entry[0]} ({out})"
    if parsed.svg:
        curves = [(label, report["eval_curve"]) for label, report in reports
                  if report["eval_curve"]]
        if not curves:
            print("compare_reports: none of the runs has a held-out loss", file=sys.stderr)
            return 2
        import plots  # Needs matplotlib, which tables do without.

        parsed.svg.parent.mkdir(parents=True, exist_ok=True)
        parsed.svg.write_text(plots.standalone(plots.compare_losses(curves)), encoding="utf-8")
    print(table([(label, report) for label, report in reports]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
