"""Trains under SIGKILL: a coordinator and three workers, of which any may die at any moment, by
chance or at a named place (common/base/crash_point.h), while connections are cut and stalled. With
quorum = all every run must publish, in every round, the bits of the same run left in peace, trained
on the same windows of the data, each once. Every second run has an overlap that gives way (tau_max =
H - 1): the run in peace then merges by the records of the other one's workers. With --region two of
the workers are the sites of a region, which may die as well, and every tier must publish those bits.
With --proxy an HTTP/2 proxy stands before every coordinator, which lives on and ends calls in its own
words.

One run per codec in turn, until enough processes have died. Prints a summary; exit status 1 if any
run was not equal, lost a contribution, or stood still.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import re
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))

from cluster import COORDINATOR, MODEL, Cluster, free_port, json_lines, run_tool  # noqa: E402
from http_proxies import HttpProxy, program  # noqa: E402
from proxy import Proxy  # noqa: E402
from regions import Tree  # noqa: E402

WORKERS = ["worker-0", "worker-1", "worker-2"]
REGION = "region"
IN_REGION = WORKERS[1:]  # With --region.
TOKENS_PER_STEP = 64
FEEDBACK = "error_feedback: true"
CODECS = [
    ("LM2", "LM2", FEEDBACK),
    ("INT4", "INT4", ""),
    ("SIGN1", "SIGN1", FEEDBACK),
    ("FP32", "FP32", ""),
    ("E3M0", "INT4", FEEDBACK),
    ("BF16", "BF16", ""),
    ("E2M1", "E2M1", ""),
    ("INT8", "INT8", FEEDBACK),
]
SETTINGS = """
train {{ steps: {steps} optimizer: {optimizer} }}
sync {{ fragments: 2 steps_between_syncs: 6 overlap_steps: 2 {overlap}
       codec_up: {up} codec_down: {down} {feedback} }}
membership {{ start_workers: 3 max_workers: 3 quorum: 3 lease_ms: {lease_ms} }}
"""
OVERLAPS = {"fixed": "mixing: 0.5", "elastic": "max_overlap_steps: 5 keep_in_flight: 0.9"}
# A region has no quorum of its own: it must not take a site that is being started for dead.
LEASES_MS = {False: 4000, True: 45000}
STUCK_S = 90
STEPS_PER_SECOND = 40


class Failure(Exception):
    """The run did not do what it must; the text says what."""


def crash_points():
    text = (ROOT / "common" / "base" / "crash_point.h").read_text()
    table = text[text.index("kCrashPoints[]"):]
    return re.findall(r'^    "(\w+)"', table[:table.index("};")], re.MULTILINE)


def hashes_of(rounds, contributors):
    """(fragment, round) -> published hash; refuses a round that is there twice with two hashes."""
    found = {}
    for row in rounds:
        key = (row["fragment"], row["round"])
        if found.setdefault(key, row["published_hash"]) != row["published_hash"]:
            raise Failure(f"round {key} was published twice, with different values")
        if row["contributors"] != contributors:
            raise Failure(f"round {key} has the contributors {row['contributors']}")
    return found


def hashes(cluster, tree):
    """The run's; refuses a region that has published others."""
    rounds = json_lines(cluster.folder / "coordinator" / "rounds.jsonl")
    if not tree:
        return hashes_of(rounds, WORKERS)
    found = hashes_of(rounds, [REGION, WORKERS[0]])
    below = hashes_of(cluster.region_rounds(REGION), IN_REGION)
    for key in below:
        if found.get(key) != below[key]:
            raise Failure(f"the region published round {key} with other values than its parent")
    if any(min(row["weights"]) < 0 for row in cluster.region_rounds(REGION)):
        raise Failure("the region was late for a parent that waits for everybody")
    return found


def trained(cluster):
    """(part, worker) -> the draws that it trained; refuses a run that passed some over, or trained
    some twice."""
    found = collections.defaultdict(set)
    status, text, errors = run_tool(COORDINATOR, "inspect", "--json",
                                    f"--run_dir={cluster.folder / 'coordinator'}")
    if status != 0:
        raise Failure(f"inspect ended with {status}: {errors}")
    for part in json.loads(text)["data"]:
        if part["skipped"] or part["repeated"]:
            raise Failure(f"{part['skipped']} windows were skipped, {part['repeated']} trained "
                          f"twice: {part}")
        for by in part["trained_by"]:
            key = (part["data_slot"], by["worker_id"])
            for span in by["draws"].split():
                first, end = span.split(":")[1].split("-")
                found[key].update(range(int(first), int(end)))
    return found


def quiet_run(settings, tree, records=None):
    """`records`: the cluster of a run whose merges are repeated."""
    with (Tree if tree else Cluster)() as cluster:
        cluster.start_coordinator(settings)
        region = [cluster.start_region(REGION, len(IN_REGION))] if tree else []
        workers = [cluster.start_worker(
            name, *([f"--replay_merges={records.out(name) / 'merges.jsonl'}"] if records else []),
            address=cluster.region_address(REGION) if tree and name in IN_REGION else None)
            for name in WORKERS]
        for process in [*workers, *region, cluster.coordinator]:
            if process.wait() != 0:
                raise Failure(f"the undisturbed run failed:\n{process.log()[-2000:]}")
        return hashes(cluster, tree), trained(cluster)


class DisturbedRun:
    """One run, and the faults that are thrown at it."""

    def __init__(self, cluster, settings, tree, chance, tally, wanted, proxy=None):
        self.cluster = cluster
        self.coordinators = ["coordinator", *([REGION] if tree else [])]
        self.chance = chance
        self.tally = tally  # Counter: where processes died, and what else was done.
        self.wanted = wanted  # Kills of this run.
        self.kills = 0
        self.points = crash_points()
        # From short to never but at the start: a worker then does all its steps again.
        self.interval = chance.choice(["300ms", "700ms", "700ms", "10m"])
        self.ports = {name: free_port() for name in self.coordinators}
        self.config = cluster.folder / "run.textproto"
        self.config.write_text(MODEL + settings)
        self.fronts = [HttpProxy(cluster, proxy, f"127.0.0.1:{port}") for port in self.ports.values() if proxy]
        to = dict(zip(self.ports, [front.port for front in self.fronts] or self.ports.values()))
        self.proxies = {name: Proxy(to[REGION if tree and name in IN_REGION else "coordinator"])
                        for name in [*WORKERS, *self.coordinators[1:]]}
        self.processes = {}
        self.armed = {}  # Process name -> the crash point that it will die at.
        self.left = set()

    def start(self, name, crash_at=None):
        variables = {"CAUSEWAY_CRASH_AT": crash_at} if crash_at else {}
        if name == "coordinator":
            process = self.cluster.start(
                "coordinator.log", COORDINATOR, "serve",
                f"--run_dir={self.cluster.folder / 'coordinator'}", f"--config={self.config}",
                f"--listen=127.0.0.1:{self.ports[name]}", "--exit_when_finished",
                "--snapshot_every_rounds=4",
                variables=variables)
        elif name == REGION:
            process = self.cluster.start(
                f"{REGION}.log", *self.cluster.region_command(
                    REGION, len(IN_REGION), f"127.0.0.1:{self.proxies[REGION].port}"),
                f"--listen=127.0.0.1:{self.ports[REGION]}", "--snapshot_every_rounds=3",
                variables=variables)
        else:
            process = self.cluster.start_worker(
                name, f"--checkpoint_interval={self.interval}",
                # A process that was killed ends only when the disk lets it: so the next one waits.
                "--connect_timeout=5m",
                f"--max_tokens_per_second={TOKENS_PER_STEP * STEPS_PER_SECOND}",
                address=f"127.0.0.1:{self.proxies[name].port}", variables=variables)
        self.processes[name] = process
        self.armed.pop(name, None)
        if crash_at:
            self.armed[name] = crash_at

    def kill(self, name, place):
        self.processes[name].child.kill()
        self.processes[name].child.wait()
        self.count(place)

    def count(self, place):
        self.kills += 1
        self.tally[place] += 1

    def disturb(self):
        kind = self.chance.random()
        alive = [name for name in self.processes if self.processes[name].child.poll() is None]
        if not alive:
            return
        if kind < 0.12:
            self.tally["connections cut"] += 1
            self.proxies[self.chance.choice(list(self.proxies))].cut()
        elif kind < 0.2:
            self.tally["connections stalled"] += 1
            self.proxies[self.chance.choice(list(self.proxies))].stall(self.chance.uniform(0.2, 2.5))
        elif kind < 0.5:
            name = self.chance.choice(
                self.coordinators if self.chance.random() < 0.8 else WORKERS)
            if name not in alive or name in self.armed:
                return
            self.kill(name, name.split("-")[0])
            point = self.chance.choice(self.points)
            self.start(name, f"{point}:{self.chance.randint(1, 6)}")
        else:
            name = self.chance.choice(alive)
            self.kill(name, name.split("-")[0])
            time.sleep(self.chance.choice([0, 0, 0.1, 0.4]))
            self.start(name)

    def reap(self):
        """Starts again what died; True once the coordinator ended by itself."""
        for name, process in list(self.processes.items()):
            status = process.child.poll()
            if status is None or name in self.left:
                continue
            if status == 0:
                if name == "coordinator":
                    return True
                self.left.add(name)
            elif status == -9:
                self.count(f"{name.split('-')[0]} {self.armed[name].split(':')[0]}")
                self.start(name)
            else:
                raise Failure(f"{name} ended with {status}:\n{process.log()[-3000:]}")
        return False

    def somebody_trains(self):
        return len(self.left.intersection(WORKERS)) < len(WORKERS)

    def run(self):
        for name in self.coordinators:
            self.start(name)
        for name in self.chance.sample(WORKERS, len(WORKERS)):
            self.start(name)
        next_fault = time.monotonic() + self.chance.uniform(0.5, 1.5)
        progress, since = -1, time.monotonic()
        while not self.reap():
            now = time.monotonic()
            # A coordinator that did not hear the last good-byes waits for leases before it ends.
            if now >= next_fault and self.kills < self.wanted and self.somebody_trains():
                self.disturb()
                since = time.monotonic()
                next_fault = time.monotonic() + self.chance.uniform(0.1, 1.6)
            rounds = len(json_lines(self.cluster.folder / "coordinator" / "rounds.jsonl"))
            if rounds != progress:
                progress, since = rounds, now
            if now - since > STUCK_S:
                raise Failure(f"no round was published for {STUCK_S} s, after {rounds}")
            time.sleep(0.02)
        for front in self.fronts:
            if front.process.child.poll() is not None:
                raise Failure(f"the proxy ended:\n{front.process.log()[-3000:]}")
        for proxy in self.proxies.values():
            proxy.stop()


def report_progress(kills, wanted, runs, started):
    seconds = time.monotonic() - started
    left = seconds / max(1, kills) * (wanted - kills)
    print(f"{kills}/{wanted} kills, {runs} runs, {seconds:.0f} s, about {max(0, left):.0f} s left", file=sys.stderr,
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--kills", type=int, default=200, help="processes that die, in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=160, help="inner steps of every run")
    parser.add_argument("--overlap", choices=[*OVERLAPS, "both"], default="both",
                        help="fixed: merges are waited for; elastic: only H - 1 steps after the send")
    parser.add_argument("--region", action="store_true",
                        help="two of the workers are the sites of a region")
    parser.add_argument("--proxy", choices=["nginx", "haproxy"], help="stands before every coordinator")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    arguments = parser.parse_args()
    if arguments.proxy and program(arguments.proxy) is None:
        print(f"skipped: there is no {arguments.proxy} that works here; Debian's package {arguments.proxy} has it")
        return 77
    tree = arguments.region
    chance = random.Random(arguments.seed)
    tally = collections.Counter()
    started = time.monotonic()
    total = {"kills": 0, "runs": 0, "rounds": 0, "recoveries": 0}
    failures = []
    while total["kills"] < arguments.kills and not failures:
        up, down, feedback = CODECS[total["runs"] % len(CODECS)]
        overlap = (arguments.overlap if arguments.overlap in OVERLAPS
                   else list(OVERLAPS)[total["runs"] % len(OVERLAPS)])
        settings = SETTINGS.format(overlap=OVERLAPS[overlap], steps=arguments.steps, up=up,
                                   lease_ms=LEASES_MS[tree],
                                   down=down, feedback=feedback,
                                   optimizer=("ADAMW", "MUON")[total["runs"] // 2 % 2])
        with (Tree if tree else Cluster)() as cluster:
            try:
                run = DisturbedRun(cluster, settings, tree, chance, tally,
                                   arguments.kills - total["kills"], arguments.proxy)
                run.run()
                found = hashes(cluster, tree)
                expected, windows = quiet_run(settings, tree,
                                              cluster if overlap == "elastic" else None)
                if found != expected:
                    first = min(key for key in expected if found.get(key) != expected[key])
                    raise Failure(f"{up}: fragment {first[0]} differs from round {first[1]} on")
                if trained(cluster) != windows:
                    raise Failure(f"{up}: other windows of the data were trained than undisturbed")
                summary = cluster.summary()
                if summary["hash_mismatches"]:
                    raise Failure(f"{up}: {summary['hash_mismatches']} hash mismatches")
            except Failure as failure:
                failures.append(str(failure))
                kept = ROOT / "build" / f"faults-{os.getpid()}"
                cluster.folder.rename(kept)
                print(f"the run's files are kept in {kept}", file=sys.stderr)
                break
            total["kills"] += run.kills
            total["rounds"] += len(found)
            total["recoveries"] += sum(e["event"] == "recovered" for e in cluster.events())
        total["runs"] += 1
        report_progress(total["kills"], arguments.kills, total["runs"], started)
    result = {**total, "seed": arguments.seed, "bit_equal": not failures,
              "same_windows": not failures,
              "seconds": round(time.monotonic() - started, 1),
              "by_place": dict(sorted(tally.items())), "failures": failures}
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        print(f"{result['kills']} kills in {result['runs']} runs of {result['rounds']} rounds: "
              + ("every bit as undisturbed" if not failures else failures[0]))
        for place, count in result["by_place"].items():
            print(f"  {count:5} {place}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
