#!/usr/bin/env python3
"""Draws utilization against bandwidth, from causewayctl simulate.

usage: simulator_figures.py [--bin build/release/bin] [--svg docs/figures/simulated_utilization.svg]
                            [--json FILE]

Two sites, 100 ms one way, for the models of the paper's table: Causeway's schedule (H = 100, 50
fragments, tau 6, int4 both ways), the same without overlap, DiLoCo (one fragment) in int4 and data parallelism in
bf16, each over links of 10 Mbit/s to 1 Tbit/s. Nothing is random: the same tree draws the same figure.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy"))

from causeway_run import plots  # noqa: E402

MODELS = (("1B", 1e9, 100), ("10B", 10e9, 800), ("100B", 100e9, 4900))
MODES = (
    ("streaming, int4, tau 6", ["--fragments=50", "--overlap_steps=6"]),
    ("streaming, int4, tau 0", ["--fragments=50", "--overlap_steps=0"]),
    ("DiLoCo, int4", ["--fragments=1", "--overlap_steps=0"]),
    ("data parallel, bf16", ["--fragments=1", "--overlap_steps=0", "--steps_between_syncs=1",
                             "--codec_up=bf16", "--codec_down=bf16", "--steps=20"]),
)
SWEEP = "--sweep=10mbit,1tbit,101"


def sweep(bin_folder, values, step_ms, flags):
    done = subprocess.run(
        [str(bin_folder / "causewayctl"), "simulate", f"--params={values:g}",
         f"--step_ms={step_ms}", "--links=2x1gbit", "--rtt_ms=200",
         "--coordinator_link=unlimited", SWEEP, *flags, "--json"],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return [(point["bit_per_s"], point["utilization"])
            for point in json.loads(done.stdout)["points"]]


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--svg", type=Path,
                        default=ROOT / "docs" / "figures" / "simulated_utilization.svg")
    parser.add_argument("--json", type=Path, help="the curves, for programs")
    options = parser.parse_args(arguments)
    curves = [{"model": name, "mode": label, "points": sweep(options.bin, values, step_ms, flags)}
              for name, values, step_ms in MODELS for label, flags in MODES]
    options.svg.write_text(plots.standalone(plots.utilization_curves(curves)))
    if options.json:
        options.json.write_text(json.dumps(curves) + "\n")
    print(f"{len(curves)} curves are in {options.svg}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
