#!/usr/bin/env python3
"""What a worker really moves, both ways, counted on the wire: IP packets with all their headers.

    tests/experiments/wire_bytes.py [--bin build/release/bin] [--out docs/figures/wire_bytes.json]

Trains the same model by data parallelism in bf16 and by Streaming DiLoCo at H = 100 with several
codecs, two workers in network namespaces over emulated links (tests/wan), which count every packet
from the first step to the last: acknowledgements, heartbeats, telemetry and gRPC's frames included.
Takes about four minutes; needs root and /dev/net/tun.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "wan"))

import network  # noqa: E402
import utilization  # noqa: E402
from utilization import Mode  # noqa: E402

PERIOD = 100  # H
STEP_MS = 150
MODEL = utilization.Model("tiny-1m", tokens=64, step_ms=STEP_MS, fragments=10, overlap=5)
LINKS = network.LinkSettings(rate_mbit=200, rtt_ms=20)
BASELINE = "data-parallel"

_STREAMING = ("pattern: BALANCED fragments: {{fragments}} steps_between_syncs: 100 overlap_steps: "
              "{{overlap}} mixing: 0.5 {codecs}")


def _streaming(name, label, codecs):
    return Mode(name, label, _STREAMING.format(codecs=codecs), periods=3, skipped=0,
                steps_per_period=PERIOD)


_PARALLEL = next(mode for mode in utilization.MODES if mode.name == BASELINE)
MODES = (
    Mode(BASELINE, "data parallel, bf16", _PARALLEL.sync, _PARALLEL.outer, periods=30, skipped=0,
         steps_per_period=1),
    _streaming("int4", "Streaming, H 100, int4 both ways", "codec_up: INT4 codec_down: INT4"),
    _streaming("int4-entropy", "the same, compressed without loss",
               "codec_up: INT4 codec_down: INT4 entropy_up: true entropy_down: true"),
    _streaming("lm2", "Streaming, H 100, lm2 up, int4 down",
               "codec_up: LM2 codec_down: INT4 error_feedback: true"),
)


def per_step(run, parameters):
    """Bytes of one worker and step on the wire, and how many times fewer than in the paper's count of
    data parallelism: 16 bits per parameter and step, one way."""
    # Counting begins when the first step is over, of data parallelism with its exchange.
    steps = run["steps"] - 1 if run["mode"] == BASELINE else run["steps"]
    result = {}
    for way in ("up", "down"):
        result[way] = statistics.fmean(link[f"{way}_bytes"] for link in run["links"]) / steps
        result[f"{way}_of_paper"] = 2 * parameters / result[way]
    return result


def table(rows):
    """Markdown, as in docs/results.md."""
    base = rows[0]
    lines = ["| | bytes per worker and step, up / down | fewer than data parallel here, up / down | "
             "fewer than 16 bits per parameter and step, up / down |",
             "| --- | ---: | ---: | ---: |"]
    for row in rows:
        moved = row["wire"]
        lines.append(
            f"| {row['label']} | {moved['up']:,.0f} / {moved['down']:,.0f} | "
            f"{base['wire']['up'] / moved['up']:.0f}x / {base['wire']['down'] / moved['down']:.0f}x | "
            f"{moved['up_of_paper']:.0f}x / {moved['down_of_paper']:.0f}x |")
    return "\n".join(lines)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--out", type=Path, help="receives the JSON")
    parser.add_argument("--redraw", type=Path, help="measures nothing: takes the JSON of --out")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    options.congestion = None
    if options.redraw:
        report = json.loads(options.redraw.read_text())
    else:
        network.skip_if_impossible()
        report = {"command": "tests/experiments/wire_bytes.py", "model": MODEL.preset,
                  "steps_between_syncs": PERIOD, "step_ms": STEP_MS, "rows": []}
        for mode in MODES:
            print(f"{mode.label} ...", file=sys.stderr, flush=True)
            run = utilization.run_one(options, MODEL, mode, LINKS)
            report["rows"].append({
                "name": mode.name, "label": mode.label, "steps": run["steps"],
                "parameters": run["parameters"], "wire": per_step(run, run["parameters"])})
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1) if options.json else table(report["rows"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
