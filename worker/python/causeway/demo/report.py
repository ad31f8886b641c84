"""Makes report.json, report.html and sample.txt in the folder of a run.

    python3 -m causeway.demo.report OUT

report.html is the one that the coordinator left when it stopped, with the sample.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from causeway.demo import figures, output, units

_ANSWERS = 'id="answers">{'  # Begins what a report's page has inside.


def write_report(out: Path) -> dict:
    """Writes the files, returns what report.json holds."""
    run, notes = output.load_run(out), []
    sample = next((w.summary["sample"] for w in run.workers if w.summary.get("sample")), None)
    page = out / "coordinator" / "report.html"
    if page.exists():
        more = json.dumps(sample).replace("<", "\\u003c")
        text = page.read_text(encoding="utf-8").replace(_ANSWERS, f'{_ANSWERS}"sample":{more},', 1)
        (out / "report.html").write_text(text, encoding="utf-8")
    else:
        notes.append("coordinator/report.html is missing, and so there is no report.html.")
    numbers = {**figures.compute(run), "notes": notes}
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


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m causeway.demo.report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="a run's folder")
    out = parser.parse_args(arguments).out
    try:
        tell(out)
    except OSError as error:
        print(f"report: '{out}' is no folder of a run that came to its end: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
