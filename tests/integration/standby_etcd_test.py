"""Coordinators that share a run by etcd, as real processes: who leads, and what nobody may do."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest
from signal import SIGCONT, SIGSTOP

from cluster import (
    COORDINATOR, MODEL, SIGKILL, SIGTERM, Cluster, free_port, json_lines, run_tool, wait_until)
from etcd import MISSING, Etcd, is_there
from standby_processes_test import get

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "faults"))
from proxy import Proxy  # noqa: E402

RUN = """
run_name: "shared"
train { steps: 90 optimizer: MUON }
sync { fragments: 2 steps_between_syncs: 6 overlap_steps: 2 mixing: 0.5
       codec_up: INT4 codec_down: INT4 }
membership { start_workers: 2 max_workers: 2 lease_ms: 20000 }
"""
FOR_EVER_S = 1e6
ON_DISK = "all deltas are on the disk"
MAKE_CERTIFICATES = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "make_certificates"


class Machines(Cluster):
    """Two machines and etcd. The first reaches etcd, and is reached by the other one, through
    proxies; workers reach both directly."""

    def __init__(self, tls=False):
        super().__init__()
        self.config = self.folder / "run.textproto"
        self.config.write_text(MODEL + RUN)
        self.certificates = self.folder / "certificates"
        if tls:
            for words in (["init"], ["coordinator", "--ip", "127.0.0.1"], ["operator", "machine"]):
                subprocess.run([MAKE_CERTIFICATES, "--dir", self.certificates, *words], check=True,
                               stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, timeout=60)
        self.etcd = Etcd(self.folder, server=self.certificates / "coordinator" if tls else None,
                         client=self.client if tls else None)
        self.etcd_flags = self.tls_flags() if tls else []
        self.ports = [free_port(), free_port()]
        self.to_etcd = [Proxy(port) for port in self.etcd.clients]
        self.to_first = Proxy(self.ports[0])
        self.lives = 0
        self.in_memory = False

    def __exit__(self, *error):
        super().__exit__(*error)
        self.etcd.__exit__(*error)
        for proxy in self.to_etcd + [self.to_first]:
            proxy.stop()

    @property
    def client(self):
        return self.certificates / "operator-machine"

    def tls_flags(self):
        return [f"--etcd_ca={self.client / 'ca.pem'}", f"--etcd_cert={self.client / 'cert.pem'}",
                f"--etcd_key={self.client / 'key.pem'}"]

    def run_dir(self, node):
        return self.folder / f"node{node}"

    def share(self, node):
        self.lives += 1
        if node == 0:
            flags = [f"--advertise=127.0.0.1:{self.to_first.port}",
                     "--etcd=" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.to_etcd)]
        else:
            flags = [f"--etcd={self.etcd.addresses}"]
        process = self.start(
            f"node{node}-{self.lives}.log", COORDINATOR, "serve",
            f"--run_dir={self.run_dir(node)}", f"--config={self.config}",
            f"--listen=127.0.0.1:{self.ports[node]}", f"--standby_name=node{node}",
            "--snapshot_every_rounds=3", "--exit_when_finished", "--http=127.0.0.1:0",
            f"--http_address_file={self.http_file(node)}", *flags,
            *self.etcd_flags,
            *([f"--deltas_in={self.memory(node)}"] if self.in_memory else []))
        return process

    def http_file(self, node):
        return self.folder / f"http{node}"

    def ask(self, node, path):
        """The answer's status and text."""
        return get(self.http_file(node).read_text().strip(), path)

    def memory(self, node):
        """Stands for the memory of that machine."""
        return self.folder / f"memory{node}"

    def reboot(self, node, process):
        process.signal(SIGKILL)
        process.wait()
        shutil.rmtree(self.memory(node))

    def both(self, in_memory=False):
        """The first one leads, the second has everything."""
        self.in_memory = in_memory
        first = self.share(0)
        wait_until(lambda: "listens on" in first.log() or first.child.poll() is not None,
                   "the first one serves")
        second = self.share(1)
        wait_until(lambda: "has everything: in sync" in first.log()
                   or None not in (first.child.poll(), second.child.poll()), "both are in sync")
        return first, second

    def start_workers(self, step_ms=40):
        address = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return [self.start_worker(f"worker-{i}", f"--min_step_time={step_ms}ms",
                                  address=address)
                for i in range(2)]

    def node_events(self, node):
        return json_lines(self.run_dir(node) / "events.jsonl")


def hashes(folder):
    return {(row["fragment"], row["round"]): row["published_hash"]
            for row in json_lines(folder / "rounds.jsonl")}


def times(events, name):
    return [event["time"] for event in events if event["event"] == name]


class Tree(Machines):
    """A hub on two machines, and a region of it on two others."""

    def __init__(self):
        super().__init__()
        self.config.write_text(MODEL + RUN.replace("lease_ms: 20000", "lease_ms: 4000"))
        self.region_ports = [free_port(), free_port()]

    def region_dir(self, node):
        return self.folder / f"region{node}"

    def share_region(self, node):
        self.lives += 1
        return self.start(
            f"region{node}-{self.lives}.log", COORDINATOR, "serve", f"--run_dir={self.region_dir(node)}",
            "--parent=" + ",".join(f"127.0.0.1:{port}" for port in self.ports),
            "--region_id=eu", "--sites=2", f"--etcd={self.etcd.addresses}",
            f"--listen=127.0.0.1:{self.region_ports[node]}", f"--standby_name=region{node}",
            "--snapshot_every_rounds=3", "--exit_when_finished", "--http=off")

    def start_sites(self):
        address = ",".join(f"127.0.0.1:{port}" for port in self.region_ports)
        return [self.start_worker(f"worker-{i}", "--min_step_time=40ms", address=address)
                for i in range(2)]


@unittest.skipUnless(is_there(), MISSING)
class TreeTest(unittest.TestCase):
    def start(self, tree):
        """Returns both coordinators of the hub and of the region, and the sites, on their way."""
        hub = tree.both()
        region = [tree.share_region(0)]
        wait_until(lambda: "listens on" in region[0].log(), "the region serves")
        region.append(tree.share_region(1))
        wait_until(lambda: "has everything: in sync" in region[0].log(), "its copy is in sync")
        sites = tree.start_sites()
        tree.wait_for_step("worker-0", 20)
        return hub, region, sites

    def test_a_region_fails_over_while_its_parent_is_away(self):
        with Tree() as tree:
            hub, region, sites = self.start(tree)
            for gone in [*hub, region[0]]:
                gone.signal(SIGKILL)
                gone.wait()
            wait_until(lambda: "no coordinator answers at" in region[1].log()
                       or region[1].child.poll() is not None, "it leads, and waits for its parent")
            self.assertIsNone(region[1].child.poll(), region[1].log())
            # Its folder knows the run: this one needs no parent to follow.
            region[0] = tree.share_region(0)
            wait_until(lambda: "leads: " in region[0].log()
                       or region[0].child.poll() is not None, "it knows whom to follow")
            self.assertIsNone(region[0].child.poll(), region[0].log())
            hub = tree.share(1)
            for process in [*sites, region[1], hub]:
                self.assertEqual(process.wait(), 0, process.log())
            found = hashes(tree.run_dir(1))
            self.assertEqual(len(found), 3 * 15)
            self.assertEqual(hashes(tree.region_dir(1)), found)

    def test_a_region_goes_to_who_leads_above_and_its_sites_to_who_leads_the_region(self):
        with Tree() as tree:
            hub, region, sites = self.start(tree)
            hub[0].signal(SIGKILL)
            wait_until(lambda: "listens on" in hub[1].log(), "the hub's second one serves")
            tree.wait_for_step("worker-0", tree.steps("worker-0") + 20)
            region[0].signal(SIGKILL)
            wait_until(lambda: "listens on" in region[1].log(), "the region's second one serves")
            for process in [*sites, region[1], hub[1]]:
                self.assertEqual(process.wait(), 0, process.log())
            found = hashes(tree.run_dir(1))
            self.assertEqual(len(found), 3 * 15)
            self.assertEqual(hashes(tree.region_dir(1)), found)
            for folder in (tree.run_dir(1), tree.region_dir(1)):
                summary = json.loads((folder / "summary.json").read_text())
                self.assertEqual(summary["hash_mismatches"], 0)


@unittest.skipUnless(is_there(), MISSING)
class SharedRunTest(unittest.TestCase):
    def end(self, machines, workers, leader, process):
        for worker in workers:
            self.assertEqual(worker.wait(), 0, worker.log())
        self.assertEqual(process.wait(), 0, process.log())
        found = hashes(machines.run_dir(leader))
        self.assertEqual(len(found), 3 * 15)
        return found

    def test_a_leader_that_is_cut_off_ends_before_another_one_leads(self):
        with Machines() as machines:
            first, second = machines.both()
            workers = machines.start_workers()
            machines.wait_for_step("worker-0", 20)
            # Workers reach it still, and it has deltas to acknowledge; etcd and the copy are gone.
            for proxy in machines.to_etcd + [machines.to_first]:
                proxy.stall(FOR_EVER_S)
            self.assertEqual(first.wait(), 1, first.log())
            self.assertIn("leads no more", first.log())
            wait_until(lambda: "listens on" in second.log(), "the second one serves")
            published = self.end(machines, workers, 1, second)
            stopped = times(machines.node_events(0), "failed")
            self.assertLess(stopped[0], times(machines.node_events(1), "coordinator_started")[0])
            # Also what the first one wrote last, and told nobody: rounds follow from what is sent.
            known = hashes(machines.run_dir(0))
            self.assertEqual({key: published[key] for key in known}, known)

    def test_a_leader_that_comes_back_follows_and_its_folder_is_put_aside(self):
        with Machines() as machines:
            first, second = machines.both()
            wait_until(lambda: machines.ask(1, "/readyz")[0] == 200, "the copy says so")
            self.assertIn("follows 127.0.0.1:", machines.ask(1, "/healthz")[1])
            self.assertIn("causeway_copy_in_sync 1", machines.ask(1, "/metrics")[1])
            self.assertEqual(machines.ask(1, "/")[0], 404)
            port = machines.http_file(1).read_text()
            workers = machines.start_workers()
            machines.wait_for_step("worker-0", 20)
            first.signal(SIGKILL)
            first.wait()
            wait_until(lambda: "listens on" in second.log(), "the second one serves")
            wait_until(lambda: machines.ask(1, "/")[0] == 200, "its status page is there")
            self.assertEqual(machines.ask(1, "/readyz")[0], 200)
            self.assertEqual(machines.http_file(1).read_text(), port)
            again = machines.share(0)
            wait_until(lambda: "in sync are" in second.log(), "the first one has everything")
            self.assertIn("follows it", again.log())
            # And the lead goes back, in order.
            second.signal(SIGTERM)
            self.assertEqual(second.wait(), 0, second.log())
            wait_until(lambda: "listens on" in again.log(), "the first one serves again")
            self.end(machines, workers, 0, again)

    def test_machines_that_are_rebooted_in_turn_lose_no_delta_in_memory(self):
        with Machines() as machines:
            processes = list(machines.both(in_memory=True))
            workers = machines.start_workers()
            published = {}
            for leader, step in [(0, 20), (1, 40), (0, 60)]:
                other = 1 - leader
                wait_until(lambda: "deltas are kept in memory" in processes[leader].log(),
                           "deltas are in memory")
                machines.wait_for_step("worker-0", step)
                machines.reboot(leader, processes[leader])
                published |= hashes(machines.run_dir(leader))
                # It is in the set still, has lost deltas, and must not lead.
                processes[leader] = machines.share(leader)
                wait_until(lambda: "listens on" in processes[other].log(), "the other one serves")
                wait_until(lambda: "in sync are" in processes[other].log(), "both are in sync")
                log = processes[leader].log()
                self.assertIn("has lost deltas that were in memory", log)
                self.assertNotIn("listens on", log)
            found = self.end(machines, workers, 1, processes[1])
            self.assertEqual({key: found[key] for key in published}, published)

    def test_a_copy_whose_memory_went_while_it_followed_does_not_lead(self):
        with Machines() as machines:
            first, second = machines.both(in_memory=True)
            workers = machines.start_workers()
            wait_until(lambda: "deltas are kept in memory" in first.log(), "deltas are in memory")
            machines.wait_for_step("worker-0", 20)
            # It is whole as it begins to follow, and within the lease of the leader not any more.
            first.signal(SIGKILL)
            first.wait()
            shutil.rmtree(machines.memory(1))
            wait_until(lambda: "nobody leads, and" in second.log(), "it does not lead")
            self.assertNotIn("listens on", second.log())
            again = machines.share(0)
            wait_until(lambda: "a new copy begins" in second.log(), "it begins anew")
            self.end(machines, workers, 0, again)

    def test_a_machine_that_is_alone_may_be_rebooted(self):
        with Machines() as machines:
            first, second = machines.both(in_memory=True)
            workers = machines.start_workers()
            machines.wait_for_step("worker-0", 20)
            # It may have been alone for a moment before it had a standby.
            before = first.log().count(ON_DISK)
            second.signal(SIGKILL)
            wait_until(lambda: first.log().count(ON_DISK) > before, "it is alone")
            machines.wait_for_step("worker-0", machines.steps("worker-0") + 10)
            machines.reboot(0, first)
            again = machines.share(0)
            self.end(machines, workers, 0, again)

    def test_machines_that_have_both_lost_their_memory_wait_and_say_so(self):
        with Machines() as machines:
            processes = machines.both(in_memory=True)
            workers = machines.start_workers()
            wait_until(lambda: "deltas are kept in memory" in processes[0].log(), "in memory")
            machines.wait_for_step("worker-0", 20)
            for node in (1, 0):
                machines.reboot(node, processes[node])
            again = [machines.share(node) for node in range(2)]
            for process in again:
                wait_until(lambda: "nobody leads, and" in process.log(), "it waits")
                process.signal(SIGTERM)
                self.assertEqual(process.wait(), 0, process.log())
            for worker in workers:
                worker.signal(SIGKILL)

    def test_without_etcd_nobody_leads_and_with_it_the_same_one_goes_on(self):
        with Machines() as machines:
            first = machines.share(0)
            wait_until(lambda: "listens on" in first.log(), "the first one serves")
            workers = machines.start_workers(step_ms=100)
            machines.wait_for_step("worker-0", 10)
            for process in machines.etcd.processes[1:]:
                process.signal(SIGSTOP)
            self.assertEqual(first.wait(), 1, first.log())
            again = machines.share(0)
            wait_until(lambda: "etcd does not answer" in again.log(), "it waits for etcd")
            for process in machines.etcd.processes[1:]:
                process.signal(SIGCONT)
            self.end(machines, workers, 0, again)

    def test_an_etcd_that_asks_for_certificates(self):
        with Machines(tls=True) as machines:
            first, second = machines.both()
            workers = machines.start_workers()
            machines.wait_for_step("worker-0", 20)
            first.signal(SIGKILL)
            first.wait()
            self.end(machines, workers, 1, second)
            flags = ["serve", f"--run_dir={machines.folder / 'refused'}", "--http=off",
                     f"--config={machines.config}", f"--etcd={machines.etcd.addresses}"]
            cut = [flag for flag in machines.tls_flags() if "key" not in flag]
            other = [*machines.tls_flags(), f"--etcd_ca={machines.config}"]
            for more, text in [([], "no answer from etcd"),
                               (cut, "--etcd_ca, --etcd_cert and --etcd_key must be given"),
                               (other, "--etcd_ca, --etcd_cert, --etcd_key: ")]:
                status, _, error = run_tool(COORDINATOR, *flags, *more)
                # It may answer the next start: a supervisor is to try it.
                self.assertEqual(status, 2 if more else 1, error)
                self.assertIn(text, error.strip().splitlines()[-1])

    def test_an_etcd_that_asks_for_a_user(self):
        with Machines() as machines:
            machines.etcd.ask_for_users("causeway", "its password", "/causeway/")

            def secret(name, text, mode=0o600):
                path = machines.folder / name
                path.write_text(text)
                path.chmod(mode)
                return f"--etcd_password_file={path}"

            known = secret("known", "causeway:its password\n")
            flags = ["serve", f"--run_dir={machines.folder / 'refused'}", "--http=off",
                     f"--config={machines.config}", f"--etcd={machines.etcd.addresses}"]
            for more, text in [
                    ([], "give --etcd_password_file"),
                    ([secret("wrong", "causeway:another")], "etcd does not know causeway"),
                    ([secret("half", "causeway\n")], "must have one line, USER:PASSWORD"),
                    ([secret("open", "causeway:its password\n", 0o644)], "--etcd_password_file: ")]:
                status, _, error = run_tool(COORDINATOR, *flags, *more)
                self.assertEqual(status, 2, error)
                self.assertIn(text, error.strip().splitlines()[-1])
            machines.etcd_flags = [known]
            first, second = machines.both()
            workers = machines.start_workers()
            machines.wait_for_step("worker-0", 20)
            first.signal(SIGKILL)
            first.wait()
            self.end(machines, workers, 1, second)

    def test_what_is_refused(self):
        with Machines() as machines:
            run_dir = f"--run_dir={machines.folder / 'refused'}"
            config = f"--config={machines.config}"
            etcd = f"--etcd={machines.etcd.addresses}"
            nameless = machines.folder / "nameless.textproto"
            nameless.write_text(MODEL + RUN.replace('run_name: "shared"', ""))
            status, _, error = run_tool(
                COORDINATOR, "serve", run_dir, "--http=off", f"--etcd=127.0.0.1:{free_port()}",
                "--listen=127.0.0.1:7070", config)
            self.assertEqual(status, 1, error)  # A supervisor is to start it again.
            self.assertIn("check --etcd", error.strip().splitlines()[-1])
            for flags, text in [
                    (["--etcd=nowhere", config], "--etcd"),
                    ([etcd, "--listen=0.0.0.0:7070", config], "--advertise=HOST:PORT"),
                    ([etcd, "--listen=127.0.0.1:7070"], "--etcd needs --config"),
                    ([etcd, f"--config={nameless}"], "needs a run_name"),
                    ([etcd, config, "--durability=none"], "--durability=none")]:
                status, _, error = run_tool(COORDINATOR, "serve", run_dir, "--http=off", *flags)
                self.assertEqual(status, 2, error)
                self.assertIn(text, error.strip().splitlines()[-1])
            refused = machines.folder / "refused"
            os.makedirs(refused, exist_ok=True)
            (refused / "CLUSTER").write_text("12345")
            status, _, error = run_tool(COORDINATOR, "serve", run_dir, "--http=off", etcd, config)
            self.assertEqual(status, 2, error)
            self.assertIn("was led by cluster 12345: check --etcd", error)


if __name__ == "__main__":
    unittest.main()
