"""Scenarios of regions as real processes: equal bits everywhere, kills, and what is refused."""

import shutil
import unittest

from cluster import BIN, COORDINATOR, SYNC, ended, free_port, json_lines, output_of, refusal_of, wait_until
from regions import Tree
from security_test import make, tls, with_certificates

SETTINGS = (SYNC + "train { steps: %d optimizer: MUON } "
            "membership { start_workers: 3 max_workers: 6 lease_ms: 4000 } ")
SLOW = "--min_step_time=60ms"


class RegionsTest(unittest.TestCase):
    def check(self, tree, rounds):
        summary = tree.summary()
        self.assertEqual(summary["rounds"], rounds)
        self.assertEqual(summary["hash_mismatches"], 0)
        self.assertEqual(tree.summary("eu")["hash_mismatches"], 0)
        self.assertEqual(tree.published(), tree.published("eu"))

    def test_a_region_and_a_site_under_a_hub(self):
        with Tree().serving(SETTINGS % 36) as tree:
            region = tree.start_region("eu", 2)
            sites = [tree.start_worker("flat")]
            sites += [tree.start_worker(f"site-{i}", address=tree.region_address("eu"))
                      for i in range(2)]
            ended(*sites, region, tree.coordinator)
            self.check(tree, 18)
            self.assertGreaterEqual(tree.summary("eu")["hash_checks"], 2 * 18)
            for row in tree.rounds():
                self.assertEqual(row["contributors"], ["eu", "flat"])
                self.assertAlmostEqual(row["weights"][0], 2 / 3)
            workers = tree.summary()["workers"]
            self.assertEqual(workers["eu"]["tokens"], 2 * workers["flat"]["tokens"])
            # The link to the hub carries as much for two sites as for one.
            self.assertEqual(workers["eu"]["bytes_up"], workers["flat"]["bytes_up"])

    def start_beside_a_flat_site(self, tree, steps=36, **variables):
        """Returns a region of two sites, which has the variables, its address, and all sites of the run."""
        tree.start_coordinator(SETTINGS % steps)
        region = tree.start_region("eu", 2, variables=variables)
        address = tree.region_address("eu")
        sites = [tree.start_worker("flat", SLOW)]
        sites += [tree.start_worker(f"site-{i}", SLOW, address=address) for i in range(2)]
        return region, address, sites

    def test_a_region_that_died_in_a_pause_goes_on_after_it(self):
        with Tree() as tree:
            region, address, processes = self.start_beside_a_flat_site(tree)
            tree.wait_for_step("site-0", 4)
            self.order(tree, "pause")
            wait_until(lambda: tree.events("paused", "eu"), "the region has handed the pause on")
            region.kill()
            self.order(tree, "resume")
            region = tree.start_region("eu", 2, f"--listen={address}")
            ended(*processes, region, tree.coordinator)
            self.assertEqual(tree.published(), tree.published("eu"))

    def test_a_region_that_comes_back_before_its_parent_waits_for_it(self):
        with Tree() as tree:
            region, address, processes = self.start_beside_a_flat_site(tree)
            tree.wait_for_step("site-0", 8)
            for gone in (tree.coordinator, region):
                gone.kill()

            def come_back(log):
                back = tree.start(log, *tree.region_command("eu", 2), f"--listen={address}")
                wait_until(lambda: "no coordinator answers at" in back.log() or back.child.poll() is not None,
                           "it waits for its parent")
                self.assertIsNone(back.child.poll(), back.log())
                return back

            stopped = come_back("stopped.log")
            stopped.stop()
            region = come_back("back.log")
            tree.start_serving(f"--listen={tree.address}", "--exit_when_finished")
            ended(*processes, region, tree.coordinator)
            self.check(tree, 18)

    def test_a_site_without_its_past_joins_a_region_that_is_on_its_way(self):
        with Tree() as tree:
            region, address, processes = self.start_beside_a_flat_site(tree, steps=60)
            tree.wait_for_step("site-1", 14)
            gone = processes.pop()
            gone.kill()
            shutil.rmtree(tree.out("site-1"))
            processes.append(tree.start_worker("site-1", SLOW, address=address))
            ended(*processes, region, tree.coordinator)
            first = min(line["step"] for line in json_lines(tree.out("site-1") / "metrics.jsonl")
                        if line["kind"] == "step")
            self.assertGreater(first, 6)
            self.check(tree, 30)

    def order(self, tree, what):
        output_of(BIN / "causewayctl", what, f"--coordinator={tree.address}")


class RolesTest(unittest.TestCase):
    def prepare(self, tree, steps=12):
        with_certificates(tree)
        for role, name in (("region", "eu"), ("worker", "flat"), ("worker", "site-0"),
                           ("worker", "site-1")):
            make(tree, role, name)
        for role, name in (("region", "eu"), ("worker", "thief")):
            make(tree, "token", role, name)
        tokens = tree.folder / "certificates" / "tokens"
        tree.start_coordinator(SETTINGS % steps, *tls(tree, "coordinator"), f"--token_file={tokens}")

    def token(self, tree, name):
        return tree.folder / "certificates" / f"token-{name}" / "token"

    def start_sites(self, tree, region, *flags):
        return [tree.start_worker(f"site-{i}", *tls(tree, f"worker-site-{i}"), *flags,
                                  address=tree.region_address(region)) for i in range(2)]

    def test_a_regions_certificate_and_a_sites_are_renewed_in_place(self):
        with Tree() as tree:
            self.prepare(tree, steps=60)
            at = tree.folder / "certificates" / "region-eu"
            region = tree.start_region("eu", 2, *tls(tree, "coordinator"), "--tls_refresh=1s",
                                       f"--parent_tls_cert={at / 'cert.pem'}",
                                       f"--parent_tls_key={at / 'key.pem'}")
            sites = self.start_sites(tree, "eu", "--tls_refresh=1s", "--min_step_time=150ms")
            flat = tree.start_worker("flat", *tls(tree, "worker-flat"))
            wait_until(lambda: len(tree.rounds()) >= 2, "rounds are published")
            for name, process in (("region-eu", region), ("worker-site-0", sites[0])):
                make(tree, "renew", name)
                wait_until(lambda p=process: "its connection is made anew" in p.log(), f"{name} connects anew")
                wait_until(lambda p=process: "attached again" in p.log(), f"{name} is back")
            processes = [*sites, flat, region, tree.coordinator]
            ended(*processes)
            for process in processes:
                self.assertNotRegex(process.log(), r"lane \d+: trying again")
            self.assertEqual(tree.published(), tree.published("eu"))

    def test_a_parent_is_known_by_the_first_name_of_a_list_or_by_the_one_that_is_given(self):
        with Tree() as tree:
            make(tree, "init")
            make(tree, "coordinator", "--host", "localhost", "--host", "hub.example.org")
            for name in ("eu", "us"):
                make(tree, "region", name)
            tree.start_coordinator(SETTINGS % 12, *tls(tree, "coordinator"))
            port = tree.address.rpartition(":")[2]
            # The certificate names no IP address.
            for name, parent, flags in (
                    ("eu", f"localhost:{free_port()},127.0.0.1:{port}", []),
                    ("us", tree.address, ["--parent_tls_server_name=hub.example.org"])):
                at = tree.folder / "certificates" / f"region-{name}"
                region = tree.start_region(
                    name, 2, *tls(tree, "coordinator"), f"--parent_tls_cert={at / 'cert.pem'}",
                    f"--parent_tls_key={at / 'key.pem'}", *flags, parent=parent)
                self.assertIsNone(region.child.poll(), region.log())

    def test_nobody_poses_as_a_region(self):
        with Tree() as tree:
            self.prepare(tree)
            # A worker's token, under its own name; a region's, under another one's.
            for name, token, words in (("thief", "worker-thief", "asked to attach as a region"),
                                       ("us", "region-eu", "--region_id must agree")):
                region = tree.start_region(name, 2, *tls(tree, "coordinator"),
                                           f"--parent_token_file={self.token(tree, token)}")
                # Both are found before there are sites.
                self.assertNotEqual(region.wait(), 0, region.log())
                self.assertIn(words, region.log())
            # Nor is a region a site.
            site = tree.start_worker("eu", tls(tree, "region-eu")[0],
                                     f"--token_file={self.token(tree, 'region-eu')}")
            self.assertNotEqual(site.wait(), 0, site.log())
            self.assertIn("asked to attach as a worker", site.log())
            self.assertFalse(tree.events("worker_joined"))


class RefusalsTest(unittest.TestCase):
    def refused(self, command, *words):
        error = refusal_of(*command)
        for word in words:
            self.assertIn(word, error)

    def test_flags_that_do_not_fit(self):
        with Tree() as tree:
            command = tree.region_command("eu", 2, parent="127.0.0.1:1")
            self.refused(command + ["--preset=best"], "outer optimizer", "leave out")
            self.refused([COORDINATOR, "serve", "--run_dir=x", "--sites=2"], "give --parent")
            self.refused(command[:-1] + ["--sites=0"], "--sites=N")

    def test_parents_that_are_none(self):
        with Tree().serving(SETTINGS % 36) as tree:
            self.refused(tree.region_command("eu", 7), "--sites=7", "max_workers")
            region = tree.start_region("eu", 2)
            below = tree.start_region("west", 1, parent=tree.region_address("eu"))
            self.assertIsNone(below.child.poll(), below.log())
            region.kill()
            # Its parent would be its own child.
            self.refused(tree.region_command("eu", 2, parent=tree.region_address("west")),
                         "ring", "eu > west")

    def test_a_folder_of_another_run(self):
        with Tree() as tree, Tree() as other:
            tree.start_coordinator(SETTINGS % 36)
            other.start_coordinator(SETTINGS % 36)
            region = tree.start_region("eu", 2)
            region.kill()
            wait_until(lambda: region.child.poll() is not None, "the region is gone")
            self.refused(tree.region_command("eu", 2, parent=other.address),
                         "holds the run", "fresh --run_dir")


if __name__ == "__main__":
    unittest.main()
