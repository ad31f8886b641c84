"""The coordinator's HTTP port: where it is, what it answers, and that it never gets in the way."""

import json
import unittest

from cluster import Cluster, get, wait_until

RUN = "train { steps: 100000 } sync { steps_between_syncs: 6 } membership { start_workers: 1 }"


class HttpPortTest(unittest.TestCase):
    def test_a_worker_is_not_ready_while_its_coordinator_is_away(self):
        with Cluster().serving(RUN) as cluster:
            address = cluster.address
            port_file = cluster.folder / "metrics_address"
            worker = cluster.start_worker("a", "--max_tokens_per_second=6400",
                                          "--metrics=127.0.0.1:0",
                                          f"--metrics_address_file={port_file}")
            cluster.wait_for_step("a", 3)
            metrics = port_file.read_text().strip()
            self.assertEqual(get(metrics, "/readyz"), (200, "ok\n"))
            cluster.coordinator.kill()
            wait_until(lambda: get(metrics, "/readyz")[0] == 503, "the worker misses it")
            self.assertIn("coordinator", get(metrics, "/readyz")[1])
            self.assertEqual(get(metrics, "/healthz")[0], 200, "starting it anew would not help")
            cluster.start_coordinator(RUN, f"--listen={address}")
            wait_until(lambda: get(metrics, "/readyz") == (200, "ok\n"), "the worker is back")
            self.assertIsNone(worker.child.poll(), worker.log())

    def test_curves_go_on_after_a_restart(self):
        def curve(cluster):
            workers = json.loads(get(cluster.http_address, "/api/v1/series")[1])["workers"]
            return next((one["step"] for one in workers if one["id"] == "a"), [])

        with Cluster().serving(RUN) as cluster:
            cluster.start_worker("a", "--max_tokens_per_second=6400")
            wait_until(lambda: len(curve(cluster)) >= 3, "there is a curve")
            cluster.coordinator.stop()
            # Nobody can reach it where it is now: all that it shows is what the first one has left.
            cluster.start_coordinator(RUN)
            wait_until((cluster.folder / "http_address").exists, "the page is served")
            kept = curve(cluster)
            self.assertGreaterEqual(len(kept), 3)
            self.assertEqual(kept, sorted(kept))
            self.assertEqual(json.loads(get(cluster.http_address, "/api/v1/workers")[1])
                             ["workers"][0]["heard_unix_s"], None)

    def test_the_default_is_a_port_that_is_free(self):
        with Cluster() as first, Cluster() as second:
            for cluster in (first, second):
                cluster.start_coordinator(RUN, "--http=auto")
            self.assertNotEqual(first.http_address, second.http_address)
            for cluster in (first, second):
                self.assertTrue(cluster.http_address.startswith("127.0.0.1:"))
                for path in ("/healthz", "/readyz"):
                    self.assertEqual(get(cluster.http_address, path), (200, "ok\n"))

    def test_off_is_off(self):
        with Cluster().serving(RUN, "--http=off") as cluster:
            self.assertFalse((cluster.folder / "http_address").exists())
            self.assertNotIn("http://", cluster.coordinator.log())

    def test_others_who_can_reach_it_are_warned_of(self):
        with Cluster().serving(RUN, "--http=0.0.0.0:0") as cluster:
            self.assertIn("shows the run to everyone who can reach it", cluster.coordinator.log())


if __name__ == "__main__":
    unittest.main()
