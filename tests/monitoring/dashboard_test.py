"""The Grafana dashboard and the alert rules name only metrics, labels and events that exist."""

import json
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import make_monitoring  # noqa: E402  pylint: disable=wrong-import-position

NAME = re.compile(r"\b((?:causeway|process)_[a-z_]+)")
LABELS = re.compile(r"\b((?:causeway|process)_[a-z_]+)\{([^}]*)\}")
# Prometheus adds these to every series.
TARGET_LABELS = {"instance", "job"}
SUFFIXES = ("_bucket", "_sum", "_count")


def known():
    """All metrics, with the series of histograms: {name: labels}."""
    found = {}
    for side in ("coordinator", "standby", "worker"):
        for name, (kind, labels, _) in make_monitoring.metrics(side).items():
            found.setdefault(name, set()).update(labels)
            if kind == "histogram":
                for suffix in SUFFIXES:
                    found[name + suffix] = labels | {"le"}
    return found


def expressions(value):
    """Every PromQL expression below a value of the dashboard's JSON."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("expr", "query") and isinstance(inner, str):
                yield inner
            yield from expressions(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from expressions(inner)


class DashboardTest(unittest.TestCase):
    def check(self, expression):
        metrics = known()
        for name in NAME.findall(expression):
            self.assertIn(name, metrics, expression)
        for name, matchers in LABELS.findall(expression):
            for label, _, value in re.findall(r'(\w+)(=~|!=|!~|=)"([^"]*)"', matchers):
                self.assertIn(label, metrics[name] | TARGET_LABELS, expression)
                if label == "event":
                    for event in value.split("|"):
                        self.assertIn(event, make_monitoring.events("Coordinator"), expression)

    def test_the_dashboard(self):
        text = (ROOT / "deploy" / "grafana" / "causeway.json").read_text()
        dashboard = json.loads(text)
        found = list(expressions(dashboard))
        self.assertGreater(len(found), 30)
        for expression in found:
            self.check(expression)
        panels = dashboard["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        variables = {variable["name"] for variable in dashboard["templating"]["list"]}
        self.assertLessEqual(set(re.findall(r"\$\{?([a-z_]+)", text)) - {"__all"}, variables | {"_"})
        taken = set()
        for panel in panels:  # None lies upon another, or beyond the page.
            place = panel["gridPos"]
            self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
            cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                     for y in range(place["y"], place["y"] + place["h"])}
            self.assertFalse(cells & taken, panel["title"])
            taken |= cells

    def test_the_rules(self):
        text = (ROOT / "deploy" / "prometheus" / "rules" / "causeway.yml").read_text()
        alerts = re.findall(r"- alert: (\w+)", text)
        self.assertEqual(len(set(alerts)), len(alerts))
        bodies = re.split(r"- alert: \w+", text)[1:]
        documented = (ROOT / "docs" / "monitoring.md").read_text()
        tested = (ROOT / "deploy" / "prometheus" / "tests" / "causeway_test.yml").read_text()
        for alert, body in zip(alerts, bodies):
            self.check(body[body.index("expr:"):body.index("labels:")])
            self.assertIn("summary:", body)
            self.assertIn("action:", body)
            self.assertIn(f"`{alert}`", documented)
        # Those that people are woken by have unit tests.
        for alert in ("WorkerLost", "RoundLate", "UtilizationLow", "CertificateExpiring", "DiskLow",
                      "RunFailed", "CoordinatorDown", "HashMismatch"):
            self.assertIn(f"alertname: Causeway{alert}\n", tested)


if __name__ == "__main__":
    unittest.main()
