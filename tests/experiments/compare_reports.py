#!/usr/bin/python3
"""Compares runs: their held-out losses in one plot.

    tests/experiments/compare_reports.py OUT1 OUT2 OUT3 --svg docs/figures/modes.svg

Each OUT holds a report.json.
"""

import argparse
import json
import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="compare_reports.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outs", type=Path, nargs="+", metavar="OUT")
    parser.add_argument("--svg", type=Path, required=True, help="where the plot goes")
    parsed = parser.parse_args(arguments)
    try:
        reports = [json.loads((out / "report.json").read_text(encoding="utf-8")) for out in parsed.outs]
    except (OSError, ValueError) as error:
        print(f"compare_reports: {error}", file=sys.stderr)
        return 2
    modes = [report["mode"] for report in reports]
    curves = [(mode if modes.count(mode) == 1 else f"{mode} ({out})", report["eval_curve"])
              for mode, out, report in zip(modes, parsed.outs, reports)]
    import plots  # Needs matplotlib, which --help does without.

    parsed.svg.parent.mkdir(parents=True, exist_ok=True)
    parsed.svg.write_text(plots.standalone(plots.compare_losses(curves)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
