#!/usr/bin/env python3
"""What unequal and dying sites cost the others: real processes on loopback.

  unequal_sites.py [--scenario pace|death|all] [--steps N] [--json]

pace   Two workers of one speed and one of half that, with dynamic local updates and without:
       utilization and throughput of the fast ones, and how much the slow one trains.
death  One of three equal workers is killed with SIGKILL, with a round that waits for every member
       and with an adaptive grace window: when the next round closes, and throughput of the others
       before and after.

The speed of a site is that of --min_step_time: a step takes that long whatever the machine does
besides, unless it is overloaded. `device_ms` says what steps really took, and must agree.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))
from cluster import SIGKILL, Cluster, json_lines, wait_until  # noqa: E402

FAST_MS = 100
SLOW_MS = 200
PERIOD = 30
LEASE_MS = 10_000  # Of the runs in which one dies.
OVERLAP = 6

SETTINGS = """
train {{ steps: {steps} }}
sync {{ fragments: 2 steps_between_syncs: {period} overlap_steps: {overlap} mixing: 0.5
       codec_up: INT4 codec_down: INT4 }}
membership {{ start_workers: 3 max_workers: 4 lease_ms: {lease_ms} {membership} }}
"""


def settings(steps, lease_ms, membership):
    return SETTINGS.format(steps=steps, period=PERIOD, overlap=OVERLAP, lease_ms=lease_ms,
                           membership=membership)


def steps_of(cluster, worker):
    return [line for line in json_lines(cluster.out(worker) / "metrics.jsonl")
            if line["kind"] == "step"]


def rates(lines, begin, end):
    """Of the steps within a span of wall time."""
    inside = [line for line in lines if begin <= line["unix_s"] <= end]
    if len(inside) < 2:
        raise SystemExit("too few steps to measure: is the machine overloaded?")
    first, last = inside[0], inside[-1]
    wall = last["unix_s"] - first["unix_s"]
    compute = last["compute_s"] - first["compute_s"]
    blocked = last["blocked_s"] - first["blocked_s"]
    gaps = [b["unix_s"] - a["unix_s"] for a, b in zip(inside, inside[1:])]
    return {
        "steps_per_s": (last["step"] - first["step"]) / wall,
        "tokens_per_s": (last["tokens"] - first["tokens"]) / wall,
        "utilization": compute / (compute + blocked),
        "device_ms": 1000 * compute / (len(inside) - 1),
        "longest_gap_ms": 1000 * max(gaps),
    }


def run_pace(steps, max_pace):
    with Cluster() as cluster:
        cluster.start_coordinator(settings(steps, 2000, f"max_pace: {max_pace}"))
        speeds = {"fast-1": FAST_MS, "fast-2": FAST_MS, "slow": SLOW_MS}
        workers = [cluster.start_worker(name, f"--min_step_time={ms}ms")
                   for name, ms in speeds.items()]
        for worker in workers:
            if worker.child.wait(timeout=1200) != 0:
                raise SystemExit(worker.log())
        cluster.coordinator.wait()
        lines = {name: steps_of(cluster, name) for name in speeds}
        # The first two periods are for measuring speeds and taking up the pace.
        begin = max(next(l["unix_s"] for l in lines[name] if l["step"] > 2 * PERIOD)
                    for name in speeds)
        end = min(lines[name][-1]["unix_s"] for name in speeds)
        result = {name: rates(lines[name], begin, end) for name in speeds}
        for name in speeds:
            summary = cluster.summary(name)
            result[name]["utilization_of_whole_run"] = summary["compute_seconds"] / (
                summary["compute_seconds"] + summary["blocked_seconds"])
            result[name]["pace"] = lines[name][-1]["pace"]
        total = cluster.summary()
        losses = [json_lines(cluster.out(name) / "metrics.jsonl") for name in speeds]
        result["tokens_per_s_together"] = sum(result[name]["tokens_per_s"] for name in speeds)
        result["wall_s"] = total["ended_unix_s"] - total["started_unix_s"]
        result["eval_loss"] = next(l["eval_loss"] for file in losses for l in reversed(file)
                                   if l["kind"] == "eval")
        return result


def run_death(membership):
    with Cluster() as cluster:
        cluster.start_coordinator(settings(100_000, LEASE_MS, membership))
        names = ["worker-1", "worker-2", "worker-3"]
        workers = {name: cluster.start_worker(name, f"--min_step_time={FAST_MS}ms")
                   for name in names}
        cluster.wait_for_step("worker-3", 4 * PERIOD)
        workers["worker-3"].signal(SIGKILL)
        killed = time.time()
        def closed_without():
            return [row for row in cluster.rounds() if row["closed_unix_s"] > killed
                    and "worker-3" not in row["contributors"]]
        wait_until(closed_without, "a round closes without the dead worker")
        first = closed_without()[0]
        # Until the lease has ended, and as long again.
        time.sleep(max(0, killed + 2 * LEASE_MS / 1000 + 2 - time.time()))
        measured_until = time.time()
        result = {
            "lease_ms": LEASE_MS,
            "next_round_closed_after_ms": 1000 * (first["closed_unix_s"] - killed),
            "reason": first["reason"],
        }
        lease_end = killed + LEASE_MS / 1000 + 1
        for when, begin, end in (("before", killed - 6, killed), ("within_lease", killed, lease_end),
                                 ("after_lease", lease_end, measured_until)):
            each = [rates(steps_of(cluster, name), begin, end) for name in names[:2]]
            result[when] = {
                "steps_per_s": statistics.mean(r["steps_per_s"] for r in each),
                "utilization": statistics.mean(r["utilization"] for r in each),
                "longest_gap_ms": max(r["longest_gap_ms"] for r in each)}
        return result


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", choices=("pace", "death", "all"), default="all")
    parser.add_argument("--steps", type=int, default=360)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report = {"fast_ms": FAST_MS, "slow_ms": SLOW_MS, "steps_between_syncs": PERIOD,
              "overlap_steps": OVERLAP, "load_average": os.getloadavg()[0],
              "cores": os.cpu_count()}
    runs = []
    if options.scenario in ("pace", "all"):
        runs += [("without_pace", lambda: run_pace(options.steps, 0)),
                 ("with_pace", lambda: run_pace(options.steps, 4))]
    if options.scenario in ("death", "all"):
        runs += [("death_waiting_for_all", lambda: run_death("")),
                 ("death_adaptive_grace", lambda: run_death(
                     "quorum: 2 adaptive_grace: true grace_ms: 5000"))]
    for name, run in runs:
        print(f"{name} ...", file=sys.stderr, flush=True)
        report[name] = run()
        if not options.json:
            print(name, json.dumps(report[name], indent=2), flush=True)
    if options.json:
        print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
