"""A region that shares its part of a run by etcd, under a hub that does, as real processes."""

import json
import unittest

from cluster import COORDINATOR, MODEL, SIGKILL, ended, free_port, wait_until
from etcd import main
from machines import RUN, Machines, hashes


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
            f"region{node}-{self.lives}.log", COORDINATOR, "serve",
            f"--run_dir={self.region_dir(node)}",
            "--parent=" + ",".join(f"127.0.0.1:{port}" for port in self.ports),
            "--region_id=eu", "--sites=2", f"--etcd={self.etcd.addresses}",
            f"--listen=127.0.0.1:{self.region_ports[node]}", f"--standby_name=region{node}",
            "--snapshot_every_rounds=3", "--exit_when_finished", "--http=off")

    def start_sites(self):
        address = ",".join(f"127.0.0.1:{port}" for port in self.region_ports)
        return [self.start_worker(f"worker-{i}", "--min_step_time=40ms", address=address)
                for i in range(2)]


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
                gone.kill()
            wait_until(lambda: "no coordinator answers at" in region[1].log()
                       or region[1].child.poll() is not None, "it leads, and waits for its parent")
            self.assertIsNone(region[1].child.poll(), region[1].log())
            # Its folder knows the run: this one needs no parent to follow.
            region[0] = tree.share_region(0)
            wait_until(lambda: "leads: " in region[0].log()
                       or region[0].child.poll() is not None, "it knows whom to follow")
            self.assertIsNone(region[0].child.poll(), region[0].log())
            hub = tree.share(1)
            ended(*sites, region[1], hub)
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
            ended(*sites, region[1], hub[1])
            found = hashes(tree.run_dir(1))
            self.assertEqual(len(found), 3 * 15)
            self.assertEqual(hashes(tree.region_dir(1)), found)
            for folder in (tree.run_dir(1), tree.region_dir(1)):
                summary = json.loads((folder / "summary.json").read_text())
                self.assertEqual(summary["hash_mismatches"], 0)


if __name__ == "__main__":
    main()
