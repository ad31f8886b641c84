"""The exchange of fragments over long links: see tests/wan/run --help."""

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import cuts  # noqa: E402
import network  # noqa: E402
import outage  # noqa: E402
import planner  # noqa: E402
import utilization  # noqa: E402
from exchange import measure  # noqa: E402
from network import LinkSettings  # noqa: E402
from processes import Failed, end_with  # noqa: E402

_RATES_MBIT = (100, 1000)
_RTTS_MS = (20, 100, 300)
_LOSSES_PERCENT = (0, 0.01, 0.1)
# The project's goals for the steady state at 100 ms.
_GOALS = {0: 0.90, 0.1: 0.70}


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="tests/wan/run", description="Measures workers over emulated long links: the "
        "exchange of fragments beside plain TCP, or what --matrix, --cuts, --training, --wire, "
        "--simulated, --planned, --outage_s, --black_s and --jitter name. Needs root and /dev/net/tun.")
    parser.add_argument("--rate_mbit", type=float, default=1000, help="of every link, each way")
    parser.add_argument("--rtt_ms", type=float, default=100)
    parser.add_argument("--loss", type=float, default=0, help="per cent of packets, each way")
    parser.add_argument("--congestion", help="congestion control of the kernel, such as cubic; the "
                        "kernel's default if left out")
    parser.add_argument("--matrix", action="store_true",
                        help="100 Mbit/s and 1 Gbit/s, 20, 100 and 300 ms, 0, 0.01 and 0.1 %% loss")
    parser.add_argument("--cuts", action="store_true",
                        help="cuts a link in the middle of a push and of a pull")
    parser.add_argument("--training", action="store_true",
                        help="utilization of a link of --bound_factor times the least rate")
    parser.add_argument("--bound_factor", type=float, default=1.25)
    parser.add_argument("--wire", action="store_true",
                        help="every byte of every packet, streaming at H 100 beside data parallelism: 4 minutes")
    parser.add_argument("--simulated", action="store_true",
                        help="seven settings beside what causeway.plan predicts of them: 13 minutes; with "
                        "--redraw also of what --training measured")
    parser.add_argument("--planned", action="store_true",
                        help="training with what causeway.plan answers for four pairs of links: 5 minutes")
    parser.add_argument("--outage_s", type=float,
                        help="kills the coordinator for so long: the share of three minutes around "
                        "it that workers compute, with sync.max_overlap_steps and without")
    parser.add_argument("--black_s", type=float,
                        help="the same with a coordinator that stays, while nothing crosses one "
                        "worker's link for so long")
    parser.add_argument("--jitter", action="store_true",
                        help="the same over links whose rate is drawn every second, from 10 to 100 %% "
                        "of --bound_factor times the least rate, and that are silent for 3 s a minute")
    parser.add_argument("--steps_between_syncs", type=int, default=30, help="of these three: H")
    parser.add_argument("--seed", type=int, default=1, help="of --jitter")
    parser.add_argument("--workers", type=int, default=0, help="of the exchange; 0: two, or one "
                        "where two links would need more processors than there are")
    parser.add_argument("--connections", type=int, default=0,
                        help="of every worker's exchange; 0: as many as it chooses")
    parser.add_argument("--seconds", type=float, default=6, help="of steady state")
    parser.add_argument("--bin", type=Path, default=Path(os.environ.get("CAUSEWAY_BIN",
                                                                        "build/release/bin")))
    parser.add_argument("--out", type=Path, help="receives the JSON")
    parser.add_argument("--svg", type=Path, help="receives the figure of --training")
    parser.add_argument("--redraw", type=Path,
                        help="measures nothing: takes the JSON that --out wrote")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


def cells(options):
    one = LinkSettings(rate_mbit=options.rate_mbit, rtt_ms=options.rtt_ms, loss_percent=options.loss)
    if not options.matrix:
        return [one]
    # The fast ones first: they need the machine for themselves, which others may end.
    return [dataclasses.replace(one, rate_mbit=rate, rtt_ms=rtt, loss_percent=loss)
            for rate in reversed(_RATES_MBIT) for rtt in _RTTS_MS for loss in _LOSSES_PERCENT]


def table(results):
    """Markdown, of all cells."""
    lines = ["| Mbit/s | RTT | loss | workers | exchange, up / down | plain TCP, 1 connection | "
             "plain TCP, as many connections | CPU s per GB: coordinator, worker | "
             "cores busy otherwise |",
             "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for cell in results:
        ways = [cell["exchange"], *cell["plain_tcp"]]
        shown = [f"{way['utilization']['up']:.2f} / {way['utilization']['down']:.2f}"
                 for way in ways]
        cpu = cell["exchange"]["cpu_s_per_gb"]
        as_many = cell["plain_tcp"][-1]["connections"]
        lines.append(f"| {cell['rate_mbit']:g} | {cell['rtt_ms']:g} ms | "
                     f"{cell['loss_percent']:g} % | {cell['workers']} | **{shown[0]}** | {shown[1]} | "
                     f"{as_many}: {shown[-1]} | {cpu['coordinator']:.1f}, {cpu['workers']:.1f} | {cell['exchange']['cores_busy_otherwise']:.1f} |")
    return "\n".join(lines)


def goals_missed(results):
    """A line for each cell at 100 ms that is below what is aimed at."""
    return [f"{cell['rate_mbit']:g} Mbit/s, {cell['rtt_ms']:g} ms, {cell['loss_percent']:g} % loss: "
            f"{cell['link_utilization']:.2f}, the goal is {goal}"
            for cell in results if cell["rtt_ms"] == 100
            and (goal := _GOALS.get(cell["loss_percent"])) and cell["link_utilization"] < goal]


def measure_cells(options, progress):
    results = []
    wanted = cells(options)
    for number, settings in enumerate(wanted, 1):
        progress(f"{number}/{len(wanted)}  {settings.rate_mbit:g} Mbit/s, {settings.rtt_ms:g} ms, "
                 f"{settings.loss_percent:g} % loss ...")
        results.append(measure(options, settings))
        progress(f"    {results[-1]['link_utilization']:.2f} of the link, "
                 f"{results[-1]['wall_s']:.0f} s")
        keep(options, results)
    for line in goals_missed(results):
        progress(f"below the goal: {line}")
    results.sort(key=lambda cell: (cell["rate_mbit"], cell["rtt_ms"], cell["loss_percent"]))
    return results


def progress(line):
    print(line, file=sys.stderr, flush=True)


def keep(options, report):
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


# By option: what measures, its table, and what draws a figure of it.
_KINDS = {
    "cuts": (cuts.run_cuts, cuts.table, None),
    "training": (utilization.run_utilization, utilization.utilization_table, utilization.utilization_figure),
    "wire": (utilization.run_wire, utilization.wire_table, None),
    "simulated": (planner.run_simulated, planner.simulated_table, None),
    "planned": (planner.run_planned, planner.planned_table, None),
    "outage_s": (outage.run_outage, outage.table, None),
    "black_s": (outage.run_black, outage.table, None),
    "jitter": (outage.run_jitter, outage.table, None),
}


def run(options):
    """The report, a table of it, and what draws a figure of it or None."""
    kind = next((name for name in _KINDS if getattr(options, name) not in (None, False)), None)
    measure_all, tabulate, draw = _KINDS.get(kind, (measure_cells, table, None))
    report = json.loads(options.redraw.read_text()) if options.redraw else measure_all(options, progress)
    return report, tabulate(report), draw


def main():
    options = parse_arguments()
    options.bin = options.bin.resolve()
    if not options.redraw:
        network.skip_if_impossible()
        load = os.getloadavg()[0]
        if load > 0.5:
            progress(f"this machine is busy (load {load:.1f}): rates near what its processors can "
                     "carry, and delays, will show it")
    try:
        report, text, draw = run(options)
        keep(options, report)
        if options.svg and draw:
            options.svg.write_text(draw(report), encoding="utf-8")
    except Failed as failure:
        print(f"tests/wan/run: {failure}", file=sys.stderr)
        return 1
    if options.json:
        one_cell = isinstance(report, list) and len(report) == 1
        print(json.dumps(report[0] if one_cell else report, indent=1))
    else:
        print(text)
    return 0


if __name__ == "__main__":
    end_with(main, "tests/wan/run: stopped; links and processes are gone")
