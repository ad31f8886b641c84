"""python3 -m causeway.plan: which settings to take for given links, and what a run would do over them.

  python3 -m causeway.plan --params=10e9 --step_ms=800 --links=1gbit,400mbit
  python3 -m causeway.plan simulate --params=1e9 --step_ms=500 --links=8x400mbit --overlap_steps=6

A site is [COUNTx]RATE[/RATE][@STEP]: 3x400mbit, 1gbit/200mbit (up/down), 400mbit@1600ms (its own step
time). An outage is LENGTH/EVERY or LENGTH@WHEN: 20s/1h (on average), 20s@2m (once). Exit
status: 0; 1 if no link is fast enough for what was asked; 2 for bad input.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import sys
from typing import List

from causeway.plan import _paper as paper
from causeway.plan._planner import (CODEC_BITS, NEED_FEEDBACK, PLAN_EFFICIENCY, NoLink, Plan, Request,
                                    outage_steps, make_plan, needed_rate)
from causeway.plan._setting import RETURN_SECONDS, UNLIMITED, Outages, Setting, SettingError, Site
from causeway.plan._star import Result, simulate, throughput_bound

_RATES = (("tbit", 1e12), ("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3))
_TIMES = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def rate(text: str) -> float:
    if text == "unlimited":
        return UNLIMITED
    match = re.fullmatch(r"(\d+\.?\d*(?:e\d+)?)([kmgt]bit)", text)
    if not match or not float(match[1]) > 0:
        raise SettingError(f'"{text}" is no rate: expected a number and kbit, mbit, gbit or tbit, as in 400mbit')
    return float(match[1]) * dict(_RATES)[match[2]]


def seconds(text: str) -> float:
    if not (match := re.fullmatch(r"(\d+\.?\d*)(ms|s|m|h)", text)):
        raise SettingError(f'"{text}" is no time: expected a number and ms, s, m or h, as in 20s')
    return float(match[1]) * _TIMES[match[2]]


def sites_of(text: str, options: argparse.Namespace) -> List[Site]:
    sites = []
    for part in text.split(","):
        match = re.fullmatch(r"(?:(\d{1,6})x)?([^/@x]+)(?:/([^/@x]+))?(?:@([^/@x]+))?", part)
        if not match or match[1] == "0":
            raise SettingError(f'"{part}" is no site: expected [COUNTx]RATE[/RATE][@STEP], as in 1gbit, '
                               "3x400mbit, 1gbit/200mbit (up/down) or 400mbit@1600ms")
        sites.append(Site(part, int(match[1] or 1), seconds(match[4]) if match[4] else options.step_ms / 1e3,
                          1.0, rate(match[2]), rate(match[3] or match[2]), options.rtt_ms / 2e3,
                          options.connections))
    fastest = min(site.step_seconds for site in sites)
    for site in sites:
        site.pace = min(max(site.step_seconds / fastest, 1.0), max(options.max_pace, 1.0))
    return sites


def outages_of(text: str) -> Outages:
    if not text:
        return Outages()
    if not (match := re.fullmatch(r"([^/@]+)([/@])([^/@]+)", text)):
        raise SettingError(f'"{text}" must be LENGTH/EVERY, as in 20s/1h, or LENGTH@WHEN, as in 20s@2m')
    length, second = seconds(match[1]), seconds(match[3])
    return Outages(length, once_at=second) if match[2] == "@" else Outages(length, second)


def short(value: float, unit: str = "") -> str:
    """Three digits and a prefix, as 131 GB."""
    if math.isinf(value):
        return "unlimited"
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".rstrip()


def percent(share: float) -> str:
    return f"{100 * share:.{2 if share > 0.995 or share < 0.1 else 1}f} %"


def table(rows: List[List[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *(
        cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]) for row in rows) + "\n"


def paper_text(found: dict) -> str:
    rows = [["MODEL, METHOD", *(f"{100 * target:.0f} %" for target in found["targets"])]]
    for row in found["rows"]:
        cells = [text if not steps else f"{text} ({paper.printed(ours)})" for text, ours, steps in zip(
            row["paper_gbit_per_s"], row["gbit_per_s"], row["grid_steps"])]
        rows.append([f"{row['model']} {row['method']}", *cells])
    return (f"Gbit/s for a compute utilization: the paper's, and in brackets ours where it differs\n\n{table(rows)}\n"
            f"{found['cells_exact']} of {found['cells']} cells are the paper's own grid point, "
            f"{found['cells_within_one']} are within one step.\n")


def plan_text(request: Request, plan: Plan) -> str:
    feedback = " error_feedback: true" if plan.codec_up in NEED_FEEDBACK else ""
    missed = "" if plan.reaches_target else f", short of the {percent(request.target)} asked for"
    pace = max(site.pace for site in request.sites)
    rows = [["SITE", "UTILIZATION", "NEEDS", "PAYLOAD", "LINK UP", "LINK DOWN", "CONNECTIONS"]]
    for site, expected, needed, connections in zip(
            request.sites, plan.expected.sites, plan.needed_bit_per_s, plan.connections):
        rows.append([site.name, percent(expected.utilization), short(needed, "bit/s"),
                     short(min(site.up_bit_per_s, site.down_bit_per_s) * request.link_efficiency, "bit/s"),
                     percent(expected.up_busy), percent(expected.down_busy), str(connections)])
    lines = [f"{short(request.values)} parameters: expect a utilization of {percent(plan.expected.utilization)}{missed}",
             "", f"sync {{ pattern: BALANCED fragments: {plan.fragments} steps_between_syncs: "
             f"{plan.steps_between_syncs} overlap_steps: {plan.overlap_steps}",
             f"       mixing: 0 codec_up: {plan.codec_up.upper()} codec_down: {plan.codec_down.upper()}{feedback} }}",
             *([f"membership {{ max_pace: {pace + 0.1:.2g} }}"] if pace > 1 else []),
             "", f"what binds: {plan.binding}",
             f"an exchange takes up to {plan.expected.longest_exchange_seconds:.3g} s; tau gives it "
             f"{plan.overlap_steps * plan.expected.seconds_per_step:.3g} s", "", table(rows),
             f"coordinator: {short(plan.coordinator_memory_bytes, 'B')} of memory, "
             f"{short(plan.coordinator_bit_per_s, 'bit/s')} each way, {short(plan.disk_bytes_per_s, 'B')}/s to the disk; "
             f"merge {percent(plan.expected.merge_busy)} busy"]
    lines += [f"a worker: {short(plan.worker_state_bytes, 'B')} beside what training takes",
              f"the coordinator's disk holds at most {short(plan.disk_bytes, 'B')}; after a death it serves again "
              f"within {plan.recovery_seconds:.3g} s"]
    if plan.max_overlap_steps == plan.overlap_steps:
        lines.append("slack: none is needed" + ("" if request.outages else " for a coordinator that dies"))
    else:
        text = (f"a utilization of {percent(plan.utilization_with_slack)}, without it {percent(plan.utilization_without)}"
                if request.outages else "spares workers the wait for a coordinator that dies and is back after "
                f"{plan.outage_seconds:.3g} s")
        if plan.slack_steps > plan.max_overlap_steps - plan.overlap_steps:
            text += f", as far as H allows; all the way takes an H above {plan.overlap_steps + plan.slack_steps}"
        lines += [f"slack: beside these take keep_in_flight: 1 max_overlap_steps: {plan.max_overlap_steps}", text,
                  "(what late merges do to quality is not measured: try it on a small model first)"]
    return "\n".join(lines) + "\n"


def run_text(setting: Setting, result: Result, slack: dict) -> str:
    most = f", at most {setting.max_overlap_steps}" if setting.max_overlap_steps > setting.overlap_steps else ""
    rows = [["SITE", "WORKERS", "UTILIZATION", "LINK UP", "LINK DOWN"]] + [
        [found.name, str(site.count), percent(found.utilization), percent(found.up_busy), percent(found.down_busy)]
        for site, found in zip(setting.sites, result.sites)]
    text = (f"utilization {percent(result.utilization)}; a step of the schedule takes {result.seconds_per_step:.4g} s\n"
            f"an exchange takes {result.exchange_seconds:.3g} s, at most {result.longest_exchange_seconds:.3g} s; "
            f"the overlap is {setting.overlap_steps} steps{most}\n\n{table(rows)}"
            f"coordinator: link in {percent(result.in_busy)}, out {percent(result.out_busy)}, merge "
            f"{percent(result.merge_busy)} busy; at most {short(result.peak_held_bytes, 'B')} of deltas held\n"
            f"a worker moves {short(result.up_bytes_per_step, 'B')} up and {short(result.down_bytes_per_step, 'B')} "
            "down per step\n")
    if slack:
        text += (f"\nwithout slack: utilization {percent(slack['without'])}; with all that H allows: "
                 f"{percent(slack['most'])}\n")
    return text


def parse(arguments: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m causeway.plan", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("command", nargs="?", choices=["plan", "simulate"], default="plan")
    add("--table", choices=["paper"], help="the paper's tables, beside what the simulator says")
    add("--params", type=float, default=0, metavar="N", help="parameters of the model, as 10e9")
    add("--step_ms", type=float, default=0, metavar="N", help="of an inner step")
    add("--links", default="", metavar="SITE,...", help="as 1gbit,3x400mbit@1600ms")
    add("--rtt_ms", type=float, default=100, help="round trip between a site and the coordinator")
    add("--connections", type=int, default=0, help="of a worker, whose last chunks come late; 0: they do not")
    add("--max_pace", type=float, default=0, help="as membership.max_pace")
    add("--link_efficiency", type=float, help="payload's share of a link; else 1 to simulate, 0.85 to plan")
    add("--target", type=float, default=0.99, help="utilization; with --need what is asked for")
    add("--coordinator_link", default="10gbit", help="of the coordinator, each way")
    add("--outages", default="", metavar="LENGTH/EVERY", help="of the coordinator, as 20s/1h; 20s@2m: once")
    add("--return_s", type=float, default=RETURN_SECONDS, help="from its return until transfers go on")
    add("--json", action="store_true")
    plan = parser.add_argument_group("plan")
    plan.add_argument("--disk_gb_per_s", type=float, default=1.7)
    plan.add_argument("--snapshot_every_rounds", type=int, default=10)
    run = parser.add_argument_group("simulate")
    run.add_argument("--fragments", type=int, default=50, help="of equal size")
    run.add_argument("--steps_between_syncs", type=int, default=100, help="H")
    run.add_argument("--overlap_steps", type=int, default=5, help="tau")
    run.add_argument("--max_overlap_steps", type=int, default=0, help="tau_max")
    run.add_argument("--codec_up", choices=list(CODEC_BITS), default="int4")
    run.add_argument("--codec_down", choices=list(CODEC_BITS), default="int4")
    run.add_argument("--steps", type=int, default=0, help="of the schedule; 0: five times H, or more")
    run.add_argument("--need", action="store_true", help="the least rate of the links that reaches --target")
    options = parser.parse_args(arguments)
    if options.table:
        return options
    for group, name in ((plan, "plan"), (run, "simulate")):
        for action in group._group_actions if options.command != name else ():
            if getattr(options, action.dest) != action.default:
                raise SettingError(f"{options.command} takes no --{action.dest}, which is for {name}")
    for name, most in (("params", 1e15), ("step_ms", 1e9), ("disk_gb_per_s", 1e9)):
        if not 0 < getattr(options, name) <= most:
            raise SettingError(f"--{name} must be above 0 and at most {most:g}; it is {getattr(options, name):g}")
    for name in ("rtt_ms", "return_s"):
        if not 0 <= getattr(options, name) <= 1e9:
            raise SettingError(f"--{name} must be 0 .. 1e9; it is {getattr(options, name):g}")
    if options.link_efficiency is None:
        options.link_efficiency = PLAN_EFFICIENCY if options.command == "plan" else 1.0
    if not 0 < options.link_efficiency <= 1:
        raise SettingError(f"--link_efficiency must be above 0 and at most 1; it is {options.link_efficiency:g}")
    if not 0 < options.target < 1:
        raise SettingError(f"--target must be above 0 and below 1; it is {options.target:g}")
    if options.snapshot_every_rounds < 1:
        raise SettingError(f"--snapshot_every_rounds must be 1 or more; it is {options.snapshot_every_rounds}")
    if not options.links and not options.need:
        raise SettingError("--links is required: those of the sites, as in --links=1gbit,400mbit or 3x1gbit")
    return options


def planned(options: argparse.Namespace):
    request = Request(options.params, sites_of(options.links, options), options.link_efficiency, options.target,
                      coordinator_bit_per_s=rate(options.coordinator_link),
                      disk_bytes_per_s=options.disk_gb_per_s * 1e9,
                      snapshot_every_rounds=options.snapshot_every_rounds, outages=outages_of(options.outages),
                      return_seconds=options.return_s)
    plan = make_plan(request)
    return plan_text(request, plan), dataclasses.asdict(plan)


def simulated(options: argparse.Namespace):
    sites = sites_of(options.links or "2xunlimited", options)
    for site in sites:
        site.up_bit_per_s, site.down_bit_per_s = (
            rate * options.link_efficiency for rate in (site.up_bit_per_s, site.down_bit_per_s))
    if options.fragments < 1:
        raise SettingError(f"--fragments must be 1 .. H = {options.steps_between_syncs}; it is {options.fragments}")
    setting = Setting(sites, [options.params / options.fragments] * options.fragments, options.steps_between_syncs,
                      options.overlap_steps, options.max_overlap_steps, CODEC_BITS[options.codec_up],
                      CODEC_BITS[options.codec_down], coordinator_bit_per_s=rate(options.coordinator_link),
                      outages=outages_of(options.outages), return_seconds=options.return_s,
                      warm_up_steps=options.steps_between_syncs)
    setting.steps = options.steps or (outage_steps(setting) if setting.outages else 5 * setting.steps_between_syncs)
    if options.need:
        needed = needed_rate(setting, options.target)
        bound = max(throughput_bound(options.params, max(setting.bits_up, setting.bits_down),
                                     setting.steps_between_syncs, site.step_seconds / site.pace) for site in sites)
        return (f"every site's link must carry {short(needed, 'bit/s')} each way for a utilization of "
                f"{100 * options.target:.4g} %; the bound for any overlap is {short(bound, 'bit/s')}\n",
                {"target": options.target, "needed_bit_per_s": needed, "bound_bit_per_s": bound})
    result = simulate(setting)
    slack = {}
    if setting.outages or setting.max_overlap_steps > setting.overlap_steps:
        without = simulate(dataclasses.replace(setting, max_overlap_steps=0))
        most = simulate(dataclasses.replace(setting, max_overlap_steps=setting.steps_between_syncs - 1))
        slack = {"without": without.utilization, "most": most.utilization}
    return run_text(setting, result, slack), {**dataclasses.asdict(result), "slack": slack or None}


def main(arguments: List[str]) -> int:
    try:
        options = parse(arguments)
        if options.table:
            found = paper.table()
            text = paper_text(found)
        else:
            text, found = (planned if options.command == "plan" else simulated)(options)
    except SettingError as error:
        print(f"causeway.plan: {error}", file=sys.stderr)
        return 2
    except NoLink as error:
        print(f"causeway.plan: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=2) if options.json else text, end="" if not options.json else "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
