"""causeway-worker preflight against real coordinators."""

import json
import unittest

from cluster import WORKER, Cluster, run_tool
from security_test import make, tls

RUN = """train { steps: 100000 } sync { steps_between_syncs: 6 fragments: 2 }
membership { start_workers: 1 max_workers: 2 }"""
# Longer than anything that hangs may take: the greeting's 3 s, a TLS hello's 3 s, and the rest.
HANG_S = 30


def preflight(address, *flags, probe_seconds=0.2, connections=2):
    """(exit status, {name: check}, whole JSON)."""
    status, output, error = run_tool(
        WORKER, "preflight", f"--coordinator={address}", "--json", "--threads=1",
        f"--probe_seconds={probe_seconds}", f"--connections={connections}", *flags,
        timeout=HANG_S)
    assert output, error
    report = json.loads(output)
    return status, {check["name"]: check for check in report["checks"]}, report


class PreflightTest(unittest.TestCase):
    def expect(self, checks, name, status, *words):
        check = checks[name]
        self.assertEqual(check["status"], status, check)
        for word in words:
            self.assertIn(word, check["finding"] + " " + check["remedy"])
        if status in ("failed", "warning"):
            self.assertNotEqual(check["remedy"], "", check)

    def test_a_site_that_can_join(self):
        with Cluster().serving(RUN) as cluster:
            status, checks, report = preflight(
                cluster.address, "--id=a", f"--data={cluster.data}", f"--out={cluster.out('a')}")
            self.assertEqual(status, 0, report)
            self.assertTrue(report["passed"])
            for name, check in checks.items():
                self.assertIn(check["status"], ("ok", "warning"), name)
            self.expect(checks, "identity", "ok", '"a" is free', "0 of 2")
            self.expect(checks, "configuration", "ok", "run run-", "3 fragments")
            for name in ("rate up", "rate down"):
                rate = checks[name]["values"]["rate"]
                self.assertEqual(rate["unit"], "bytes/s")
                self.assertGreater(rate["value"], 0)
                self.assertEqual(checks[name]["values"]["connections"]["value"], 2)
            self.assertGreater(checks["link"]["values"]["headroom"]["value"], 0)
            # It joined nothing and left nothing.
            self.assertEqual([e["event"] for e in cluster.events()], ["coordinator_started"])
            self.assertFalse(cluster.out("a").exists())

    def test_while_a_worker_trains(self):
        with Cluster().serving(RUN) as cluster:
            worker = cluster.start_worker("a")
            cluster.wait_for_step("a", 5)
            before = cluster.steps("a")
            status, checks, _ = preflight(
                cluster.address, "--id=a", f"--data={cluster.data}", f"--out={cluster.out('a')}")
            self.assertEqual(status, 1)
            self.expect(checks, "identity", "failed", "a live worker", "lease")
            self.expect(checks, "disk", "failed", "in use by process")
            cluster.wait_for_step("a", before + 5)
            _, checks, _ = preflight(cluster.address, "--id=b", f"--data={cluster.data}",
                                     probe_seconds=0)
            self.expect(checks, "identity", "ok", "1 of 2 places")
            self.expect(checks, "data", "ok")
            other = cluster.folder / "other"
            (cluster.folder / "other.txt").write_text("another text " * 3000)
            run_tool(WORKER, "tokenize", f"--input={cluster.folder / 'other.txt'}",
                     f"--out={other}")
            _, checks, _ = preflight(cluster.address, f"--data={other}", probe_seconds=0)
            self.expect(checks, "data", "failed", "not the text that the other sites share")
            # Another one keeps the run alive; the first one's checkpoint is its own.
            cluster.start_worker("c")
            cluster.wait_for_step("c", 1)
            worker.stop()
            _, checks, _ = preflight(cluster.address, "--id=a", f"--out={cluster.out('a')}",
                                     probe_seconds=0)
            self.expect(checks, "checkpoint", "ok", "continues from it")
            _, checks, _ = preflight(cluster.address, "--id=b", f"--out={cluster.out('a')}",
                                     probe_seconds=0)
            self.expect(checks, "checkpoint", "failed", "not of this one")

    def test_what_stands_in_the_way_is_named_by_train_and_by_preflight(self):
        at = "--coordinator=127.0.0.1:1"  # Nothing listens on a port that nobody may have.
        with Cluster() as cluster:
            for variables, words in (
                    ({}, ["127.0.0.1:1 refuses the connection", "nothing listens there"]),
                    ({"https_proxy": "http://user:secret@127.0.0.1:1"},
                     ["the proxy 127.0.0.1:1 (https_proxy) refuses the connection", "unset https_proxy"])):
                status, _, error = run_tool(WORKER, "train", at, "--id=a", f"--data={cluster.data}",
                                            f"--out={cluster.out('a')}", "--connect_timeout=1s", variables=variables)
                self.assertEqual(status, 1, error)
                status, text, _ = run_tool(WORKER, "preflight", at, "--probe_seconds=0", "--threads=1", "--json",
                                           variables=variables)
                way, = (check for check in json.loads(text)["checks"] if check["name"] == "way")
                self.assertEqual((status, way["status"]), (1, "failed"))
                for word in words:
                    self.assertIn(word, error)
                    self.assertIn(word, f"{way['finding']}: {way['remedy']}")
                self.assertNotIn("secret", error + text)

    def test_a_coordinator_with_tls(self):
        with Cluster() as cluster:
            make(cluster, "init")
            make(cluster, "coordinator", "--ip", "127.0.0.1", "--days", "3")
            make(cluster, "worker", "a")
            make(cluster, "observer", "eve")
            own = tls(cluster, "worker-a")
            with Cluster().serving(RUN) as plain:
                status, checks, _ = preflight(plain.address, *own)
                self.assertEqual(status, 1)
                self.expect(checks, "certificates", "failed", "TLS")
            cluster.start_coordinator(RUN, *tls(cluster, "coordinator"))
            status, checks, report = preflight(cluster.address, "--id=a", *own)
            self.assertEqual(status, 0, report)
            self.expect(checks, "certificates", "warning", "the coordinator's operator")
            self.expect(checks, "identity", "ok", "causeway://*/worker/a")
            self.assertGreater(checks["rate up"]["values"]["rate"]["value"], 0)
            status, checks, _ = preflight(cluster.address, "--id=b", *own,
                                          probe_seconds=0)
            self.assertEqual(status, 1)
            self.expect(checks, "identity", "failed", "--id", "worker a")
            _, checks, _ = preflight(cluster.address, "--id=eve", *tls(cluster, "observer-eve"),
                                     probe_seconds=0)
            self.expect(checks, "identity", "failed", "observer")
            status, checks, _ = preflight(cluster.address, "--id=a")
            self.assertEqual(status, 1)
            self.expect(checks, "way", "failed", "wants TLS", "--tls_ca")
            self.expect(checks, "coordinator", "skipped")

    def test_usage(self):
        for flags, words in ((["--coordinator=nowhere"], "HOST:PORT"),
                             (["--connections=17"], "--connections must be"),
                             (["--probe_seconds=11"], "--probe_seconds must be"),
                             (["--id=a/b"], "--id"),
                             (["--step_time=-1s"], "--step_time"),
                             (["--congestion_control=nonesuch"], "nonesuch")):
            with self.subTest(flags):
                status, output, error = run_tool(WORKER, "preflight", *flags)
                self.assertEqual((status, output), (2, ""))
                self.assertIn(words, error)


if __name__ == "__main__":
    unittest.main()
