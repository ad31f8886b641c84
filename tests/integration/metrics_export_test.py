"""What both programs export to Prometheus and record is what docs/monitoring.md says, and follows the run."""

import os
import re
import struct
import sys
import unittest
import urllib.request

from cluster import COORDINATOR, SYNC, Cluster, json_lines, wait_until

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs"))
import make_monitoring  # noqa: E402

SETTINGS = (SYNC + "train { steps: 100000 optimizer: MUON evaluate_every_steps: 10 %s } "
            "membership { start_workers: 2 max_workers: 4 lease_ms: 2000 } ")
PACE = "--max_tokens_per_second=6400"
SAMPLE = re.compile(r"^([a-z_]+)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


class Scrape:
    """One answer of /metrics, taken apart."""

    def __init__(self, address):
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = answer.read().decode()
        self.types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        self.helps = dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE))
        self.samples = {}  # (name, labels) -> value.
        for line in text.splitlines():
            if not line.startswith("#"):
                name, labels, value = SAMPLE.match(line).groups()
                key = (name, frozenset(LABEL.findall(labels or "")))
                assert key not in self.samples, f"{line}: twice"
                self.samples[key] = float(value)

    def family(self, name):
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        return base if self.types.get(base) == "histogram" else name

    def labels(self):
        """{metric: all label names of its series}."""
        found = {}
        for name, labels in self.samples:
            names = {label for label, _ in labels} - {"le"}
            found.setdefault(self.family(name), set()).update(names)
        return found

    def __call__(self, name, **labels):
        return self.samples[(name, frozenset(labels.items()))]

    def workers(self):
        """The values of the label `worker`."""
        return {value for _, labels in self.samples for label, value in labels if label == "worker"}


def tensorboard_records(path):
    """The data of every whole record; the checksums are checked by tests/unit/worker/member."""
    data = path.read_bytes()
    at = 0
    while at + 12 <= len(data):
        length, = struct.unpack_from("<Q", data, at)
        if at + 16 + length > len(data):
            return
        yield data[at + 12:at + 12 + length]
        at += 16 + length


class MetricsTest(unittest.TestCase):
    maxDiff = None

    def start(self, cluster, settings="", *flags):
        cluster.start_coordinator(SETTINGS % settings, *flags)
        for name in ("a", "b"):
            cluster.start_worker(
                name, PACE, "--metrics=127.0.0.1:0",
                f"--metrics_address_file={cluster.folder / name}_metrics",
                f"--tensorboard={cluster.folder / 'curves'}")

    def worker_scrape(self, cluster, name):
        return Scrape((cluster.folder / f"{name}_metrics").read_text().strip())

    def compare(self, scrape, documented, absent):
        """`absent`: documented, but not in this run."""
        expected = {name: labels for name, (_, labels, _) in documented.items() if name not in absent}
        self.assertEqual(scrape.labels(), expected)
        for name in expected:
            self.assertEqual(scrape.types[name], documented[name][0], name)
            self.assertGreater(len(scrape.helps[name]), 5)
            if scrape.types[name] == "counter":
                self.assertTrue(name.endswith("_total"), name)
            else:
                self.assertFalse(name.endswith("_total"), name)

    def test_the_documented_names_are_those_that_are_exported(self):
        certificate = {"causeway_certificate_readable", "causeway_certificate_end_timestamp_seconds"}
        with Cluster() as cluster:
            self.start(cluster, "tokens: 100000000", "--durability=replicated")
            cluster.start("follow.log", COORDINATOR, "follow", f"--run_dir={cluster.folder / 'copy'}",
                          f"--of={cluster.address}", "--standby_name=spare")
            cluster.wait_for_event("standby_attached")
            cluster.wait_for_step("a", 20)
            wait_until(lambda: "causeway_run_eval_loss" in Scrape(cluster.http_address).types,
                       "a heartbeat tells of an evaluation")
            scrape = Scrape(cluster.http_address)
            self.compare(scrape, make_monitoring.metrics("coordinator"), certificate)
            self.assertLess(scrape("causeway_standby_behind_commits", standby="spare"), 100)
            self.assertEqual(scrape("causeway_standby_in_sync", standby="spare"), 1)
            self.assertEqual(scrape("causeway_standby_missing"), 0)
            scrapes = {name: self.worker_scrape(cluster, name) for name in ("a", "b")}
            evaluates = next(name for name, scrape in scrapes.items()
                             if "causeway_training_eval_loss" in scrape.types)
            self.compare(scrapes.pop(evaluates), make_monitoring.metrics("worker"), certificate)
            other = next(iter(scrapes.values()))
            self.compare(other, make_monitoring.metrics("worker"),
                         certificate | {"causeway_training_eval_loss"})

    def test_figures_follow_the_run(self):
        with Cluster() as cluster:
            self.start(cluster)
            cluster.wait_for_step("a", 30)
            wait_until(lambda: Scrape(cluster.http_address)("causeway_run_step") >= 20,
                       "heartbeats tell of the steps")
            first = Scrape(cluster.http_address)
            self.assertEqual(first("causeway_workers", state="active"), 2)
            self.assertEqual(first.workers(), {"a", "b"})
            self.assertEqual(first("causeway_worker_up", worker="a"), 1)
            self.assertEqual(first("causeway_run_healthy"), 1)
            self.assertEqual(first("causeway_run_budget_steps"), 100000)
            self.assertEqual(first("causeway_events_total", event="worker_joined"), 2)
            self.assertEqual(first("causeway_events_total", event="worker_lost"), 0)
            self.assertGreater(first("causeway_store_bytes"), 1000)
            merged = first("causeway_contributions_total", outcome="merged")
            collected = first("causeway_round_phase_seconds_count", phase="collect")
            self.assertGreater(collected, 0)
            self.assertEqual(first("causeway_round_phase_seconds_count", phase="merge"), collected)
            self.assertEqual(first("causeway_rounds_published_total"), collected)
            self.assertEqual(merged, 2 * collected)
            own = self.worker_scrape(cluster, "a")
            self.assertGreater(own("causeway_training_gradient_norm"), 0)
            self.assertGreater(own("causeway_training_learning_rate"), 0)
            self.assertGreater(
                own("causeway_link_payload_bytes_total", link="inter-site", direction="up"), 0)
            self.assertEqual(own("causeway_events_total", event="attached"), 1)

    def test_recorded_events_are_documented(self):
        with Cluster() as cluster:
            self.start(cluster)
            cluster.wait_for_step("a", 30)
            for process in cluster.processes[1:]:
                process.stop()
            cluster.coordinator.stop()
            written = {"Coordinator": cluster.events(),
                       "Worker": json_lines(cluster.out("a") / "events.jsonl")}
            for side, lines in written.items():
                documented = make_monitoring.events(side)
                for line in lines:
                    level, fields, _ = documented[line["event"]]
                    self.assertEqual(line["level"], level, line)
                    own = set(line) - {"time", "event", "level", "message"}
                    self.assertLessEqual(own, set(fields), line)
            names = {side: [line["event"] for line in lines] for side, lines in written.items()}
            self.assertEqual(names["Coordinator"][0], "coordinator_started")
            self.assertEqual(names["Coordinator"][-1], "coordinator_stopped")
            for name in ("attached", "state_fetched", "ordered", "evaluated", "draining",
                         "checkpoint_written", "left"):
                self.assertIn(name, names["Worker"])

    def test_curves_for_tensorboard(self):
        with Cluster() as cluster:
            self.start(cluster)
            cluster.wait_for_step("a", 30)
            for process in cluster.processes[1:]:
                process.stop()
            for worker in ("a", "b"):
                files = list((cluster.folder / "curves" / worker).iterdir())
                self.assertEqual(len(files), 1)
                self.assertIn(".tfevents.", files[0].name)
                records = list(tensorboard_records(files[0]))
                self.assertIn(b"brain.Event:2", records[0])
                steps = [record for record in records if b"train/loss" in record]
                self.assertEqual(len(steps), cluster.steps(worker))
                for tag in (b"train/gradient_norm", b"train/learning_rate", b"link/megabytes_up",
                            b"speed/tokens_per_second", b"speed/compute_utilization"):
                    self.assertIn(tag, steps[-1])
            both = b"".join(record for worker in ("a", "b")
                            for path in (cluster.folder / "curves" / worker).iterdir()
                            for record in tensorboard_records(path))
            self.assertIn(b"eval/loss", both)


if __name__ == "__main__":
    unittest.main()
