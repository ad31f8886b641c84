"""What causeway.plan predicts beside what is measured over emulated links: of seven settings the share of
the time that two workers compute, and of runs that do what a plan says their bytes, too.

The simulator gets the configuration, the step's time and the link's rate, less what frames take of it:
nothing is fitted. One of the planned runs is beyond the planner's target: there it has to be right.
"""

import os
import re
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import utilization
from network import LinkSettings, Network
from processes import working_folder
from training import make_data, train

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "worker" / "python"))

from causeway import plan  # noqa: E402

# Payload's share of the frames on the link, at most (docs/results.md).
EFFICIENCY = 0.965
OBJECT_BYTES = 2500  # Beside a fragment's values (docs/results.md, Bytes on the wire).
CONNECTIONS = 4  # A worker's own choice on a link that fewer would fill.
PERIODS = 40  # Enough for the steady state.
PARAMETERS = {"tiny-1m": 1165312, "small-10m": 10000704}
MODELS = {model.preset: model for model in utilization.MODELS}
MODES = {mode.name: mode for mode in utilization.MODES}

# From full utilization to little: model, mode, Mbit/s, round trip in ms, periods (of ten steps with data
# parallelism) and those that are not counted. The second link is below the bound: streaming saturates it.
SETTINGS = (
    ("tiny-1m", "streaming", 1.03, 100, 8, 2),
    ("tiny-1m", "streaming", 0.62, 100, 8, 2),
    ("tiny-1m", "diloco-int4", 4, 50, 5, 1),
    ("tiny-1m", "diloco-int4", 1.03, 100, 5, 1),
    ("tiny-1m", "diloco", 8, 100, 5, 1),
    ("tiny-1m", "data-parallel", 40, 50, 6, 1),
    ("small-10m", "diloco-int4", 4.43, 100, 4, 1),
)


def predict(model, mode, rate_mbit, rtt_ms, connections):
    """The utilization of two workers with this model and mode over links of that rate."""
    sync = dict(re.findall(r"(\w+): (\w+)", mode.sync.format(fragments=model.fragments, overlap=model.overlap)))
    period, fragments = int(sync["steps_between_syncs"]), int(sync["fragments"])
    site = plan.Site("site", 2, model.step_ms / 1e3, 1.0, *[rate_mbit * 1e6 * EFFICIENCY] * 2, rtt_ms / 2e3, connections)
    return plan.simulate(plan.Setting(
        [site], [PARAMETERS[model.preset] / fragments] * fragments, period, int(sync["overlap_steps"]),
        bits_up=plan.CODEC_BITS[sync["codec_up"].lower()], bits_down=plan.CODEC_BITS[sync["codec_down"].lower()],
        object_bits=8 * OBJECT_BYTES, coordinator_bit_per_s=10e9, steps=PERIODS * period,
        warm_up_steps=period)).utilization


def run_simulated(options, progress):
    """Trains the seven settings, 13 minutes."""
    report = {"command": "tests/wan/run --simulated", "models": []}
    for name, mode_name, rate_mbit, rtt_ms, periods, skipped in SETTINGS:
        model, mode = MODELS[name], MODES[mode_name]
        progress(f"{name}, {mode.label}, {rate_mbit:g} Mbit/s, {rtt_ms:g} ms ...")
        per_period = 10 if mode_name == "data-parallel" else utilization.PERIOD
        run = utilization.run_one(
            options, model, replace(mode, periods=periods, skipped_periods=skipped, steps_per_period=per_period),
            LinkSettings(rate_mbit=rate_mbit, rtt_ms=rtt_ms))
        report["models"].append({
            "model": name, "rate_mbit": rate_mbit, "rtt_ms": rtt_ms, "connections": CONNECTIONS,
            "step_ms": model.step_ms, "load_average": os.getloadavg()[0], "runs": [run]})
    return report


def compare(measured):
    """Measured and predicted utilization, of a report of run_simulated or of --training."""
    return [{"model": entry["model"], "mode": run["label"], "mbit": entry["rate_mbit"], "rtt_ms": entry["rtt_ms"],
             "measured": run["utilization"],
             "predicted": predict(MODELS[entry["model"]], MODES[run["mode"]], entry["rate_mbit"], entry["rtt_ms"],
                                  entry.get("connections", CONNECTIONS))}
            for entry in measured["models"] for run in entry["runs"]]


def simulated_table(report):
    lines = ["| model | link | | measured | predicted | points |", "| --- | ---: | --- | ---: | ---: | ---: |"]
    for row in compare(report):
        lines.append(f"| {row['model']} | {row['mbit']:.2f} Mbit/s, {row['rtt_ms']:g} ms | {row['mode']} | "
                     f"{100 * row['measured']:.2f} % | {100 * row['predicted']:.2f} % | "
                     f"{100 * (row['predicted'] - row['measured']):+.2f} |")
    return "\n".join(lines)


@dataclass(frozen=True)
class Case:
    """What a plan is asked for; one worker for each rate."""
    name: str
    rates_mbit: tuple[float, ...]
    rtt_ms: float
    step_ms: int
    periods: int


CASES = (
    Case("room to spare", (3, 3), 100, 200, periods=6),
    Case("unequal links", (4, 1.2), 50, 200, periods=6),
    Case("a larger H", (0.6, 0.6), 100, 200, periods=3),
    Case("a satellite", (20, 20), 600, 50, periods=4),
)


def make_plan(case):
    sites = [plan.Site(f"{rate:g}mbit", 1, case.step_ms / 1e3, 1.0, rate * 1e6, rate * 1e6, case.rtt_ms / 2e3)
             for rate in case.rates_mbit]
    return plan.make_plan(plan.Request(PARAMETERS["tiny-1m"], sites))


def check(options, case):
    """What the planner says of a case, and what training with it shows."""
    answer = make_plan(case)
    period = answer.steps_between_syncs
    sync = {"pattern": "BALANCED", "fragments": answer.fragments, "steps_between_syncs": period,
            "overlap_steps": answer.overlap_steps, "codec_up": answer.codec_up.upper(),
            "codec_down": answer.codec_down.upper()}
    feedback = "error_feedback: true " if answer.codec_up in plan.NEED_FEEDBACK else ""
    mode = utilization.Mode(
        "planned", "", "mixing: 0.5 " + feedback + " ".join(f"{name}: {value}" for name, value in sync.items()),
        periods=case.periods, skipped_periods=1, steps_per_period=period)
    links = [LinkSettings(rate_mbit=rate, rtt_ms=case.rtt_ms) for rate in case.rates_mbit]
    with Network(options.bin / "causeway-wan-link", links) as network, working_folder() as folder:
        result = train(network, options.bin, folder, utilization.config_text(MODELS["tiny-1m"], mode),
                       make_data(options.bin, folder),
                       [f"--min_step_time={case.step_ms}ms", "--checkpoint_interval=0"], timeout_s=3600)
    steady = [utilization.steady(worker, mode.skipped) for worker in result["workers"]]
    rounds, per_step = result["rounds"], answer.fragments / period
    return {
        "case": case.name, "links_mbit": case.rates_mbit, "rtt_ms": case.rtt_ms, "step_ms": case.step_ms,
        "sync": sync, "binding": answer.binding, "reaches_target": answer.reaches_target,
        "expected": [site.utilization for site in answer.expected.sites],
        "measured": [worker["utilization"] for worker in steady],
        "measured_step_ms": [worker["step_ms"] for worker in steady],
        "rounds": len(rounds), "rounds_due": case.periods * answer.fragments,
        "payload_per_step": {
            "up": per_step * statistics.fmean(row["bytes_in"] / len(row["contributors"]) for row in rounds),
            "down": per_step * statistics.fmean(row["bytes_out"] for row in rounds)},
        "expected_payload_per_step": {
            way: PARAMETERS["tiny-1m"] * plan.CODEC_BITS[codec] / 8 / period
            for way, codec in (("up", answer.codec_up), ("down", answer.codec_down))},
        "load_average": os.getloadavg()[0],
    }


def run_planned(options, progress):
    """Trains what plans say of the cases, five minutes."""
    rows = []
    for case in CASES:
        progress(f"{case.name} ...")
        rows.append(check(options, case))
    return rows


def planned_table(rows):
    def shown(values):
        return " / ".join(f"{100 * value:.1f} %" for value in values)

    lines = ["| links | step | H, P, tau, up | what binds | expected | measured |",
             "| --- | ---: | --- | --- | ---: | ---: |"]
    for row in rows:
        sync = row["sync"]
        lines.append(
            f"| {', '.join(f'{rate:g}' for rate in row['links_mbit'])} Mbit/s, {row['rtt_ms']:g} ms | "
            f"{row['step_ms']} ms | {sync['steps_between_syncs']}, {sync['fragments']}, {sync['overlap_steps']}, "
            f"{sync['codec_up'].lower()} | {row['binding']} | {shown(row['expected'])} | {shown(row['measured'])} |")
    return "\n".join(lines)
