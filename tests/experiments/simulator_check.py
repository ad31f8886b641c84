#!/usr/bin/env python3
"""Compares what causewayctl simulate predicts with what was measured on emulated links.

usage: simulator_check.py [--bin build/release/bin] [--measured docs/figures/thin_link.json] [--json]

The measurements are those of tests/wan/run --training: two models, four ways to train, two workers over
thin links. The simulator gets the configuration, the step time and the link; payload is taken to be
so much of the link's rate as frames of 1500 bytes leave to it. Ends with status 1 if a prediction is
further from the measurement than --points.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "wan"))

import utilization  # noqa: E402

# Of 1500 bytes on the link, less IP, TCP with timestamps, TLS-less HTTP/2 frames (tests/wan/run
# finds 0.965 at most).
EFFICIENCY = 0.965
PERIODS = 40  # Enough for the steady state.


def predict(bin_folder, model, run, rate_mbit):
    """The utilization of two workers with this model and mode over links of that rate."""
    mode = next(mode for mode in utilization.MODES if mode.name == run["mode"])
    period = 1 if mode.name == "data-parallel" else utilization.PERIOD
    with tempfile.NamedTemporaryFile("w", suffix=".textproto") as config:
        config.write(utilization.config_text(model, mode))
        config.flush()
        done = subprocess.run(
            [str(bin_folder / "causewayctl"), "simulate", f"--config={config.name}",
             f"--step_ms={model.step_ms}", f"--links=2x{rate_mbit}mbit",
             f"--rtt_ms={utilization.RTT_MS}", f"--link_efficiency={EFFICIENCY}",
             f"--steps={PERIODS * period}", "--json"],
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)["utilization"]


def compare(bin_folder, measured):
    rows = []
    for entry in measured["models"]:
        model = next(m for m in utilization.MODELS if m.preset == entry["model"])
        for run in entry["runs"]:
            rows.append({
                "model": entry["model"], "mode": run["label"], "mbit": entry["rate_mbit"],
                "measured": run["utilization"],
                "predicted": predict(bin_folder, model, run, entry["rate_mbit"])})
    return rows


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--measured", type=Path,
                        default=ROOT / "docs" / "figures" / "thin_link.json")
    parser.add_argument("--points", type=float, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows = compare(options.bin, json.loads(options.measured.read_text()))
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        print("| model | link | | measured | predicted | points |\n| --- | ---: | --- | ---: | ---: | ---: |")
        for row in rows:
            print(f"| {row['model']} | {row['mbit']:.2f} Mbit/s | {row['mode']} | "
                  f"{100 * row['measured']:.2f} % | {100 * row['predicted']:.2f} % | "
                  f"{100 * (row['predicted'] - row['measured']):+.2f} |")
    off = max(abs(row["predicted"] - row["measured"]) for row in rows)
    return 0 if 100 * off <= options.points else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
