#!/usr/bin/env python3
"""Compares what causeway.plan predicts with what is measured on emulated links.

    tests/experiments/simulator_check.py --measure --out docs/figures/simulator_check.json
    tests/experiments/simulator_check.py --measured docs/figures/simulator_check.json [--json]

--measure trains seven settings for real, two workers each over links in network namespaces (tests/wan),
which takes about 13 minutes and needs root, /dev/net/tun and a machine that does nothing else; without
it, a former measurement is compared, also one of tests/wan/run --training. The simulator gets the
configuration, the step time and the link's rate, less what frames take of it: nothing is fitted.
Exit status: 0; 1 if a prediction is further from the measurement than --points.
"""

import argparse
import dataclasses
import json
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "wan"), str(ROOT / "worker" / "python")]

import network  # noqa: E402
import utilization  # noqa: E402
from causeway import plan  # noqa: E402

# Payload's share of the frames on the link, at most (docs/results.md).
EFFICIENCY = 0.965
OBJECT_BYTES = 2500  # Beside a fragment's values (docs/results.md, Bytes on the wire).
CONNECTIONS = 4  # A worker's own choice on a link that fewer would fill.
PERIODS = 40  # Enough for the steady state.
PARAMETERS = {"tiny-1m": 1165312, "small-10m": 10000704}
FIGURE = ROOT / "docs" / "figures" / "simulator_check.json"


@dataclasses.dataclass(frozen=True)
class Setting:
    model: str
    mode: str
    rate_mbit: float
    rtt_ms: float
    periods: int  # Periods of H steps; of ten with data parallelism.
    skipped: int


# From full utilization to little, by rate, latency, codec and schedule.
SETTINGS = (
    Setting("tiny-1m", "streaming", 1.03, 100, periods=8, skipped=2),
    # Less than the bound: streaming saturates the link.
    Setting("tiny-1m", "streaming", 0.62, 100, periods=8, skipped=2),
    Setting("tiny-1m", "diloco-int4", 4, 50, periods=5, skipped=1),
    Setting("tiny-1m", "diloco-int4", 1.03, 100, periods=5, skipped=1),
    Setting("tiny-1m", "diloco", 8, 100, periods=5, skipped=1),
    Setting("tiny-1m", "data-parallel", 40, 50, periods=6, skipped=1),
    Setting("small-10m", "diloco-int4", 4.43, 100, periods=4, skipped=1),
)


def _model(preset):
    return next(model for model in utilization.MODELS if model.preset == preset)


def _mode(name):
    return next(mode for mode in utilization.MODES if mode.name == name)


def predict(parameters, model, mode, rate_mbit, rtt_ms, connections):
    """The utilization of two workers with this model and mode over links of that rate."""
    sync = dict(re.findall(r"(\w+): (\w+)", mode.sync.format(fragments=model.fragments, overlap=model.overlap)))
    period, fragments = int(sync["steps_between_syncs"]), int(sync["fragments"])
    site = plan.Site("site", 2, model.step_ms / 1e3, 1.0, *[rate_mbit * 1e6 * EFFICIENCY] * 2, rtt_ms / 2e3, connections)
    return plan.simulate(plan.Setting(
        [site], [parameters / fragments] * fragments, period, int(sync["overlap_steps"]),
        bits_up=plan.CODEC_BITS[sync["codec_up"].lower()], bits_down=plan.CODEC_BITS[sync["codec_down"].lower()],
        object_bits=8 * OBJECT_BYTES, coordinator_bit_per_s=10e9, steps=PERIODS * period,
        warm_up_steps=period)).utilization


def measure(options, settings, keep):
    """Trains every setting; hands the report to keep after each."""
    report = {"command": "tests/experiments/simulator_check.py --measure", "models": []}
    for setting in settings:
        model, mode = _model(setting.model), _mode(setting.mode)
        print(f"{model.preset}, {mode.label}, {setting.rate_mbit:g} Mbit/s, "
              f"{setting.rtt_ms:g} ms ...", file=sys.stderr, flush=True)
        per_period = 10 if mode.name == "data-parallel" else utilization.PERIOD
        sized = utilization.Mode(mode.name, mode.label, mode.sync, mode.outer, setting.periods,
                                 setting.skipped, per_period)
        run = utilization.run_one(
            options, model, sized,
            network.LinkSettings(rate_mbit=setting.rate_mbit, rtt_ms=setting.rtt_ms),
            [f"--connections={options.connections}"] if options.connections != CONNECTIONS else [])
        print(f"    computing {100 * run['utilization']:.2f} % of the time, "
              f"steps of {run['step_ms']:.1f} ms", file=sys.stderr, flush=True)
        if not options.timelines:
            for link in run["links"]:
                del link["up_mbit"], link["down_mbit"]
        report["models"].append({
            "model": model.preset, "rate_mbit": setting.rate_mbit, "rtt_ms": setting.rtt_ms,
            "connections": options.connections, "step_ms": model.step_ms, "load_average": os.getloadavg()[0], "runs": [run]})
        keep(report)
    return report


def compare(measured):
    rows = []
    for entry in measured["models"]:
        model = _model(entry["model"])
        for run in entry["runs"]:
            rows.append({
                "model": entry["model"], "mode": run["label"], "mbit": entry["rate_mbit"],
                "rtt_ms": entry["rtt_ms"], "measured": run["utilization"],
                "predicted": predict(PARAMETERS[model.preset], model, _mode(run["mode"]), entry["rate_mbit"],
                                     entry["rtt_ms"], entry.get("connections", CONNECTIONS))})
    return rows


def table(rows):
    """Markdown."""
    lines = ["| model | link | | measured | predicted | points |",
             "| --- | ---: | --- | ---: | ---: | ---: |"]
    for row in rows:
        lines.append(f"| {row['model']} | {row['mbit']:.2f} Mbit/s, {row['rtt_ms']:g} ms | "
                     f"{row['mode']} | {100 * row['measured']:.2f} % | "
                     f"{100 * row['predicted']:.2f} % | "
                     f"{100 * (row['predicted'] - row['measured']):+.2f} |")
    return "\n".join(lines)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--measure", action="store_true", help="train the seven settings now")
    parser.add_argument("--only", type=int, nargs="*", help="of the seven, by number from 1")
    parser.add_argument("--out", type=Path, help="receives what --measure measures")
    parser.add_argument("--timelines", action="store_true",
                        help="with --measure: keep every link's rate in bins of 0.1 s")
    parser.add_argument("--connections", type=int, default=CONNECTIONS,
                        help="with --measure: of every worker")
    parser.add_argument("--measured", type=Path, default=FIGURE)
    parser.add_argument("--points", type=float, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    options.congestion = None
    if options.measure:
        network.skip_if_impossible()
        if os.getloadavg()[0] > 0.5:
            print(f"this machine is busy (load {os.getloadavg()[0]:.1f}): the figures will show it",
                  file=sys.stderr)
        chosen = [setting for number, setting in enumerate(SETTINGS, 1)
                  if not options.only or number in options.only]

        def keep(report):
            if options.out:
                options.out.write_text(json.dumps(report, indent=1) + "\n")

        measured = measure(options, chosen, keep)
    else:
        measured = json.loads(options.measured.read_text())
    rows = compare(measured)
    print(json.dumps(rows, indent=1) if options.json else table(rows))
    off = max(abs(row["predicted"] - row["measured"]) for row in rows)
    return 0 if 100 * off <= options.points else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
