"""A real Prometheus scrapes a real coordinator and two workers, with the configuration and the
rules of deploy/prometheus, whose unit tests promtool runs."""

import json
import pathlib
import re
import shutil
import sys
import unittest
import urllib.error
import urllib.parse
import urllib.request

from cluster import SYNC, Cluster, run_tool, wait_until

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
DASHBOARD = DEPLOY.parent / "grafana" / "causeway.json"
# Panels without a figure in a run on loopback, which has no certificates.
EMPTY_PANELS = {"Certificate"}
SETTINGS = (SYNC + "train { steps: 100000 optimizer: MUON } "
            "membership { start_workers: 2 max_workers: 4 lease_ms: 2000 } ")


class PromtoolTest(unittest.TestCase):
    def test_the_configuration_and_the_rules_are_valid(self):
        status, output, error = run_tool("promtool", "check", "config", DEPLOY / "prometheus.yml")
        self.assertEqual(status, 0, output + error)

    def test_every_alert_comes_when_it_should_and_not_before(self):
        status, output, error = run_tool("promtool", "test", "rules",
                                         DEPLOY / "tests" / "causeway_test.yml")
        self.assertEqual(status, 0, output + error)


class ScrapeTest(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster()
        self.addCleanup(self.cluster.__exit__)
        self.cluster.start_coordinator(SETTINGS)
        for name in ("a", "b"):
            self.cluster.start_worker(
                name, "--max_tokens_per_second=3200", "--metrics=127.0.0.1:0",
                f"--metrics_address_file={self.cluster.folder / name}_metrics")
        for name in ("a", "b"):
            wait_until((self.cluster.folder / f"{name}_metrics").exists, f"{name} serves metrics")
        # The file of deploy/prometheus with the addresses and a pace for tests put in.
        workers = [(self.cluster.folder / f"{name}_metrics").read_text().strip()
                   for name in ("a", "b")]
        text = (DEPLOY / "prometheus.yml").read_text()
        text = text.replace('"127.0.0.1:7071"', f'"{self.cluster.http_address}"')
        text = text.replace('"127.0.0.1:7072"', ", ".join(f'"{worker}"' for worker in workers))
        text = text.replace("15s", "1s").replace("rules/", f"{DEPLOY}/rules/")
        config = self.cluster.folder / "prometheus.yml"
        config.write_text(text)
        self.prometheus = self.cluster.start(
            "prometheus.log", "prometheus", f"--config.file={config}",
            f"--storage.tsdb.path={self.cluster.folder / 'tsdb'}",
            "--web.listen-address=127.0.0.1:0")

        # It is asked for any free port, and says in its log which one it got.
        def listening():
            return re.search(r'"Listening on" address=127\.0\.0\.1:(\d+)', self.prometheus.log())
        wait_until(listening, "Prometheus listens")
        self.address = f"127.0.0.1:{listening().group(1)}"

    def api(self, path, **query):
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except (urllib.error.URLError, ConnectionError):
            return None  # Not yet.

    def values(self, expression):
        """{sorted labels without instance and job: value}."""
        data = self.api("query", query=expression)
        result = {}
        for series in data["result"] if data else []:
            labels = {k: v for k, v in series["metric"].items()
                      if k not in ("instance", "job", "__name__")}
            result[tuple(sorted(labels.items()))] = float(series["value"][1])
        return result

    def test_targets_are_up_and_figures_arrive(self):
        def up():
            data = self.api("targets", state="active")
            return [target["health"] for target in data["activeTargets"]] if data else []
        wait_until(lambda: up() == ["up"] * 3, "all three targets are up")
        rules = self.api("rules")
        alerts = {rule["name"] for group in rules["groups"] for rule in group["rules"]}
        self.assertIn("CausewayWorkerLost", alerts)
        wait_until(lambda: self.values("rate(causeway_rounds_published_total[10s])").get((), 0) > 0,
                   "rounds are seen to be published")

        # The alert of the rules goes off for a worker that dies: at first it is pending.
        self.cluster.processes[2].child.kill()
        self.cluster.wait_for_event("worker_lost", worker="b")
        self.assertEqual(self.cluster.processes[1].child.poll(), None)

        def pending():
            data = self.api("alerts")
            return [alert["labels"]["worker"] for alert in data["alerts"]
                    if alert["labels"]["alertname"] == "CausewayWorkerLost"] if data else []
        wait_until(lambda: pending() == ["b"], "the alert for b is there")
        self.prometheus.stop()

    def test_every_panel_of_the_dashboard_has_figures(self):
        queries = [(panel["title"], target["expr"])
                   for panel in json.loads(DASHBOARD.read_text())["panels"]
                   for target in panel.get("targets", [])]
        self.assertGreater(len(queries), 30)

        def empty():
            titles = set()
            for title, expression in queries:
                # As Grafana does where all coordinators and workers are chosen.
                data = self.api("query", query=re.sub(r"\$\w+", ".*", expression))
                if data is None or not data["result"]:
                    titles.add(title)
            return titles
        wait_until(lambda: empty() == EMPTY_PANELS, "all other panels have figures")
        # And each worker is compared with the first one of its own run.
        behind = next(expression for title, expression in queries if title == "Steps behind the first")
        values = self.values(behind.replace("$coordinator", ".*"))
        self.assertEqual({labels[0][1] for labels in values}, {"a", "b"}, values)
        self.assertEqual(min(values.values()), 0)


if __name__ == "__main__":
    for program in ("prometheus", "promtool"):
        if shutil.which(program) is None:
            print(f"skipped: there is no {program} here; Debian's package prometheus has it "
                  "(deploy/install_packages packages_monitoring)")
            sys.exit(77)
    unittest.main()
