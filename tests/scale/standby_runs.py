#!/usr/bin/env python3
"""Kills the coordinator's machine for good, again and again; the run must lose nothing.

usage: standby_runs.py --standby [--kills N] [--seed S] [--json]

Three machines share a run by three etcd processes: one leads, the others hold copies, and two workers
know the addresses of all. At a random moment the leader is killed with SIGKILL and its folder deleted;
another one must lead, and the machine comes back with nothing.

What must hold, by records kept apart from the coordinators:
  lost       contributions and rounds of an undisturbed run that the last copy lacks, or has otherwise
  twice      contributions that a round counts twice, and rounds that are there twice
  bit_equal  every published round has the hash of the undisturbed run
  takeover_s, told_again_s   from the kill until another one serves; and until it has a copy that has
              everything: each, in order
"""
import argparse
import json
import pathlib
import random
import shutil
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))
import etcd  # noqa: E402
from cluster import (  # noqa: E402
    COORDINATOR, MODEL, SIGTERM, SYNC, Cluster, free_port, wait_until)
from run_record import records  # noqa: E402

SETTINGS = (SYNC + 'run_name: "shared" '
            'train { steps: %d optimizer: MUON } '
            'membership { start_workers: 2 max_workers: 2 lease_ms: 20000 } ')
STEP_MS = 20
NODES = 3
DEADLINE_S = 120


class Node:
    """One life of one machine."""

    def __init__(self, process, folder, node):
        self.process, self.folder, self.node = process, folder, node

    def log(self):
        return self.process.log()

    def ended(self):
        return self.process.child.poll() is not None

    def serves(self):
        return "listens on" in self.log()

    def lose(self):
        self.process.kill()
        shutil.rmtree(self.folder)


class Run(Cluster):
    """Machines that lead or follow in turn; each has a port, and a new folder for every life."""

    def __init__(self, steps):
        super().__init__()
        self.config = self.folder / "run.textproto"
        self.config.write_text(MODEL + SETTINGS % steps)
        self.ports = [free_port() for _ in range(NODES)]
        self.lives = 0
        self.leader = None

    def new_folder(self, node):
        self.lives += 1
        return self.folder / f"node{node}-{self.lives}"

    def serve(self, folder, node, *flags):
        process = self.start(
            f"{folder.name}.log", COORDINATOR, "serve", f"--run_dir={folder}",
            f"--config={self.config}", f"--listen=127.0.0.1:{self.ports[node]}",
            "--snapshot_every_rounds=3", "--exit_when_finished", "--http=off", *flags)
        return Node(process, folder, node)

    def train(self, step_ms):
        addresses = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return [self.start_worker(f"worker-{i}", f"--min_step_time={step_ms}ms", address=addresses)
                for i in range(2)]


class Shared(Run):
    """Machines that agree among themselves."""

    def __init__(self, steps):
        super().__init__(steps)
        self.etcd = etcd.Etcd(self.folder)
        self.nodes = []

    def __exit__(self, *error):
        self.etcd.__exit__(*error)
        super().__exit__(*error)

    def share(self, node, folder):
        self.nodes.append(self.serve(folder, node, f"--etcd={self.etcd.addresses}",
                                     f"--standby_name=node{node}"))

    def begin(self):
        for node in range(NODES):
            self.share(node, self.new_folder(node))
        self.await_leader()
        wait_until(self.is_followed, "a standby is in sync", DEADLINE_S)

    def await_leader(self):
        def somebody_serves():
            for node in self.nodes:
                assert not node.ended(), node.log()
            return any(node.serves() for node in self.nodes)
        wait_until(somebody_serves, "somebody leads", DEADLINE_S)
        self.leader = next(node for node in self.nodes if node.serves())

    def is_followed(self):
        """By its own word: everybody else has everything."""
        return self.leader.log().count("has everything: in sync are") >= NODES - 1

    def lose_machine(self):
        killed = time.monotonic()
        lost = self.leader
        self.nodes.remove(lost)
        lost.lose()
        self.await_leader()
        served = time.monotonic() - killed
        self.share(lost.node, self.new_folder(lost.node))
        wait_until(self.is_followed, "the standbys are in sync", DEADLINE_S)
        return served, time.monotonic() - killed

    def finish(self):
        ended = self.leader.process.child.wait(timeout=60)
        # The next one takes the lead of the finished run. It says so if it is stopped after all others.
        for node in self.nodes:
            if not node.ended():
                node.process.signal(SIGTERM)
            status = node.process.child.wait(timeout=60)
            if status != 0 and "and no standby follows it" not in node.log():
                return status, node
        return ended, self.leader


def record(folder):
    """(round hashes, contributions with what they held) of a run directory that nobody owns."""
    rounds = {}
    twice = 0
    for one in records(folder, "round"):
        names = tuple(one.contributors)
        twice += len(names) - len(set(names))
        twice += (one.fragment, one.round) in rounds
        rounds[one.fragment, one.round] = (names, one.published_hash)
    contributions = {}
    for one in records(folder, "contribution"):
        header = one.header
        contributions[header.fragment, header.round, header.worker_id] = (
            header.object_hash, header.tokens)
    return rounds, contributions, twice


def undisturbed(steps):
    with Run(steps) as run:
        leader = run.serve(run.new_folder(0), 0)
        for worker in run.train(0):
            assert worker.child.wait(timeout=600) == 0, worker.log()
        assert leader.process.child.wait(timeout=60) == 0, leader.log()
        return record(leader.folder)


def disturbed(run, kills, seed, say):
    draws = random.Random(seed)
    with run:
        run.begin()
        workers = run.train(STEP_MS)
        takeovers = []
        while len(takeovers) < kills:
            before = max(run.steps("worker-0"), run.steps("worker-1"))
            wait_until(lambda: max(run.steps("worker-0"), run.steps("worker-1")) > before + 3
                       or any(worker.child.poll() is not None for worker in workers),
                       "training goes on", DEADLINE_S)
            time.sleep(draws.uniform(0, 0.4))
            if any(worker.child.poll() is not None for worker in workers):
                break
            takeovers.append(run.lose_machine())
            say(f"kill {len(takeovers)} of {kills}: served after {takeovers[-1][0]:.2f} s, "
                f"copied after {takeovers[-1][1]:.2f} s, step {run.steps('worker-0')}")
        for worker in workers:
            assert worker.child.wait(timeout=600) == 0, worker.log()
        ended, leader = run.finish()
        assert ended == 0, leader.log()
        return record(leader.folder), takeovers


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--standby", action="store_true", required=True)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    def say(line):
        print(line, file=sys.stderr, flush=True)

    if not etcd.is_there():
        say(etcd.MISSING)
        return 77
    # About so many steps pass between two kills.
    steps = 60 + 70 * arguments.kills
    reference = undisturbed(steps)
    say(f"undisturbed: {len(reference[0])} rounds")
    found, takeovers = disturbed(Shared(steps), arguments.kills, arguments.seed, say)
    lost = sum(found[0].get(key) is None for key in reference[0])
    lost += sum(found[1].get(key) != value for key, value in reference[1].items())
    result = {
        "kills": len(takeovers), "seed": arguments.seed,
        "rounds": len(found[0]), "contributions": len(found[1]),
        "lost": lost, "twice": found[2], "bit_equal": found[0] == reference[0],
        "takeover_s": [round(served, 2) for served, _ in takeovers],
        "told_again_s": [round(told, 2) for _, told in takeovers],
    }
    good = lost == 0 and found[2] == 0 and result["bit_equal"]
    if arguments.json:
        print(json.dumps(result))
    else:
        longest = max((served for served, _ in takeovers), default=0)
        print(f"{len(takeovers)} machines lost: {lost} lost, {found[2]} twice, "
              f"{'the same bits' if result['bit_equal'] else 'OTHER BITS'}; "
              f"served again within {longest:.2f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
