#!/usr/bin/env python3
"""Does what `python3 -m causeway.plan` recommends, over the links that it was asked about.

    tests/experiments/planner_check.py [--bin build/release/bin] [--out docs/figures/planner_check.json]

For each case the planner gets a model, the time of a step and the links; a run is trained with the
settings it answers, over emulated links of these rates (tests/wan), and what it expected is
compared with what happened: the share of the time that workers compute, and the bytes of a step.
One case is beyond the planner's target: there it has to be right, not to please.
Takes about five minutes and needs root, /dev/net/tun and a machine that does nothing else.
Exit status: 0; 1 if an expectation was further off than --points.
"""

import argparse
import dataclasses
import json
import os
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "wan"), str(ROOT / "worker" / "python")]

import network  # noqa: E402
import utilization  # noqa: E402
import causeway.plan  # noqa: E402
from processes import working_folder  # noqa: E402
from training import make_data, train  # noqa: E402

MODEL = 'model { preset: "tiny-1m" sequence_length: 64 }'
PARAMETERS = 1165312


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    rates_mbit: tuple[float, ...]  # One worker each.
    rtt_ms: float
    step_ms: int
    periods: int
    skipped: int = 1


CASES = (
    Case("room to spare", (3, 3), 100, 200, periods=6),
    Case("unequal links", (4, 1.2), 50, 200, periods=6),
    Case("a larger H", (0.6, 0.6), 100, 200, periods=3),
    Case("a satellite", (20, 20), 600, 50, periods=4),
)


def plan(case):
    """The planner's answer."""
    sites = [causeway.plan.Site(f"{rate:g}mbit", 1, case.step_ms / 1e3, 1.0, rate * 1e6, rate * 1e6, case.rtt_ms / 2e3)
             for rate in case.rates_mbit]
    return causeway.plan.make_plan(causeway.plan.Request(PARAMETERS, sites))


def _sync(answer):
    return {"fragments": answer.fragments, "steps_between_syncs": answer.steps_between_syncs,
            "overlap_steps": answer.overlap_steps, "codec_up": answer.codec_up.upper(),
            "codec_down": answer.codec_down.upper()}


def config_text(answer, steps, workers):
    """A run with the settings that the planner answered."""
    sync = {"pattern": "BALANCED", "mixing": 0.5, **_sync(answer)}
    if sync["codec_up"] == "LM2":
        sync["error_feedback"] = "true"
    fields = " ".join(f"{name}: {value}" for name, value in sync.items())
    return (f'run_name: "planned"\n{MODEL}\n'
            f"train {{ steps: {steps} batch_sequences: 1 optimizer: ADAMW seed: 1 "
            "evaluation_sequences: 1 }\n"
            f"sync {{ {fields} }}\n"
            f"membership {{ start_workers: {workers} max_workers: {workers} quorum: {workers} "
            "lease_ms: 60000 }\n")


def payload_per_step(rounds, parameters, period):
    """Bytes up and down per worker and step, from the rounds' own sizes."""
    up = statistics.fmean(row["bytes_in"] / len(row["contributors"]) for row in rounds)
    down = statistics.fmean(row["bytes_out"] for row in rounds)
    fragments = 1 + max(row["fragment"] for row in rounds)
    return {"up": up * fragments / period, "down": down * fragments / period,
            "parameters": parameters}


def check(bin_folder, case):
    """What the planner says of a case, and what training with it shows."""
    answer = plan(case)
    period = answer.steps_between_syncs
    steps = period * case.periods
    links = [network.LinkSettings(rate_mbit=rate, rtt_ms=case.rtt_ms) for rate in case.rates_mbit]
    with network.Network(bin_folder / "causeway-wan-link", links) as joined, \
            working_folder() as folder:
        result = train(joined, bin_folder, folder,
                       config_text(answer, steps, len(links)), make_data(bin_folder, folder),
                       [f"--min_step_time={case.step_ms}ms", "--checkpoint_interval=0"],
                       timeout_s=3600)
    steady = [utilization.steady(worker, case.skipped * period) for worker in result["workers"]]
    return {
        "case": case.name, "links_mbit": case.rates_mbit, "rtt_ms": case.rtt_ms,
        "step_ms": case.step_ms, "sync": _sync(answer), "binding": answer.binding,
        "reaches_target": answer.reaches_target,
        "expected": [site.utilization for site in answer.expected.sites],
        "measured": [worker["utilization"] for worker in steady],
        "measured_step_ms": [worker["step_ms"] for worker in steady],
        "rounds": len(result["rounds"]), "rounds_due": steps // period * answer.fragments,
        "payload_per_step": payload_per_step(
            result["rounds"], result["workers"][0]["summary"]["parameters"], period),
        "expected_payload_per_step": PARAMETERS * 4.25 / 8 / period,
        "load_average": os.getloadavg()[0],
    }


def points_off(row):
    return max(100 * abs(expected - measured)
               for expected, measured in zip(row["expected"], row["measured"]))


def table(rows):
    """Markdown."""
    lines = ["| links | step | H, P, tau, up | what binds | expected | measured |",
             "| --- | ---: | --- | --- | ---: | ---: |"]
    for row in rows:
        sync = row["sync"]
        links = ", ".join(f"{rate:g}" for rate in row["links_mbit"])

        def shown(values):
            return " / ".join(f"{100 * value:.1f} %" for value in values)
        lines.append(
            f"| {links} Mbit/s, {row['rtt_ms']:g} ms | {row['step_ms']} ms | "
            f"{sync['steps_between_syncs']}, {sync['fragments']}, {sync['overlap_steps']}, "
            f"{sync['codec_up'].lower()} | {row['binding']} | {shown(row['expected'])} | "
            f"{shown(row['measured'])} |")
    return "\n".join(lines)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--out", type=Path, help="receives the JSON")
    parser.add_argument("--only", nargs="*", help="cases by name: " + ", ".join(
        repr(case.name) for case in CASES))
    parser.add_argument("--points", type=float, default=3)
    parser.add_argument("--plan", action="store_true", help="print the plans and train nothing")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    cases = [case for case in CASES if not options.only or case.name in options.only]
    if options.plan:
        print(json.dumps([dataclasses.asdict(plan(case)) for case in cases], indent=1))
        return 0
    network.skip_if_impossible()
    if os.getloadavg()[0] > 0.5:
        print(f"this machine is busy (load {os.getloadavg()[0]:.1f}): the figures will show it",
              file=sys.stderr)
    rows = []
    for case in cases:
        print(f"{case.name} ...", file=sys.stderr, flush=True)
        rows.append(check(options.bin.resolve(), case))
        print(f"    expected {rows[-1]['expected']}, measured {rows[-1]['measured']}",
              file=sys.stderr, flush=True)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(json.dumps(rows, indent=1) if options.json else table(rows))
    return 0 if max(map(points_off, rows)) <= options.points else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
