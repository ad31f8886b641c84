"""The plan, the judgements, the tables and the page, from made-up trainings: needs no network and no peer."""

import itertools
import json
import tempfile
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

import peers_report
import peers_run
from cell import FAULTS
from ways import ROWS

UNDISTURBED = {"longest_pause_s": 0.3, "whole": True, "wall_s": 30.0, "loss": 2.0,
               "bytes_per_step": {"up": 10.0, "down": 10.0}}


def log(*times):
    """Steps at these times; a tuple has its own number: (step, time)."""
    pairs = [one if isinstance(one, tuple) else (number, one) for number, one in enumerate(times)]
    return [{"t": 0.0, "start": True}] + [{"t": when, "step": step, "begin": when} for step, when in pairs]


def judged(site, other, fault="site", loss=2.01, finished=("0", "1"), stopped=False, status=None):
    result = {"fault": fault, "fault_at": 10.0, "whole": finished == ("0", "1"), "stopped": stopped, "loss": loss,
              "status": {"site-0": None, "site-1": None} | (status or {}), "done": [6, 5, 4],
              "finished": list(finished), "expected": ["0", "1"], "wall_s": 40.0, "steps": 8, "limit_s": 80.0,
              "bytes_per_step": {"up": 20.0, "down": 10.0}}
    return peers_report.judge(result, [log(*site), log(*other), log(*other)], UNDISTURBED)


def everything():
    """A report of the whole plan, as far as tables need it."""
    report = {"cells": {}, "environment": {"versions": {"torch": "2.15.0"}, "cores": 2, "kernel": "6.1", "commit": "abc"}}
    for (key, name, model, link, fault), number in zip(peers_run.planned(peers_run.parse_arguments([])),
                                                       itertools.count()):
        report["cells"][key] = {
            "row": ROWS[name].label, "model": model.name, "link": link, "fault": fault, "steps": 256,
            "done": [256, 256, 90], "finished": ["0", "1"], "congestion": "bbr",
            "whole": True, "stopped": False, "equal": name != "hivemind", "share": 0.9 - number / 100, "wall_s": 30.0,
            "loss": 2.0 + number / 1000, "bytes_per_step": {"up": 20e3, "down": 21e3}, "limit_s": 75, "took_s": 40.0,
            "machine_memory": {"site": 600 << 20, "server": 0 if name.startswith("ddp") else 30 << 20},
            "longest_pause_s": 0.1} | ({"became": {"text": "waits 12 s, +0.003", "waited_s": 12.0}} if fault else {})
    return report


class PlanTest(unittest.TestCase):
    def test_whole_plan_has_each_cell_once_and_reasons_for_the_rest(self):
        cells = peers_run.planned(peers_run.parse_arguments([]))
        self.assertEqual(len(cells), len({key for key, *_ in cells}))
        for name in ROWS:
            calm = [(model.name, link) for _, row, model, link, fault in cells if row == name and not fault]
            self.assertEqual(len(calm), 1 if name == "alone" else 4)
            for fault in FAULTS:
                planned = any(row == name and one == fault for _, row, _, _, one in cells)
                self.assertNotEqual(planned, bool(peers_run.why_not(name, fault)), (name, fault))

class JudgeTest(unittest.TestCase):
    def test_what_became_of_a_fault_is_said(self):
        for expected, site, other, more in (
                ("goes on, +0.010", (9.9, 10.1, 10.4), (9.9, 21.0), {}),
                ("goes on, without it, +0.010", (9.9, 10.1, 10.4), (9.9,), {"finished": ("0",)}),
                ("waits 12 s, +0.010", (9.9, 10.1, 22.4), (9.9, 22.0), {}),
                ("waits 60 s, a site ends, +0.010", (9.9, 10.1, 70.0), (9.9, 70.0),
                 {"fault": "server", "finished": ("0",), "status": {"site-1": -9}}),
                ("waits 60 s, one site unfinished (5/8), +0.010", (9.9, 10.1, 70.0), (9.9, 70.0),
                 {"fault": "server", "finished": ("0",)}),
                # The site that was not hit is judged, though the other alone finished.
                ("waits 12 s, unfinished 6/8, +0.010", (9.9, 10.1, 22.4), (9.9, 10.1, 70.0),
                 {"finished": ("1",), "stopped": True}),
                ("starts again, +0.010", ((4, 9.9), (5, 10.0), (4, 24.0), (5, 24.3)), ((4, 24.0),), {}),
                ("NaN everywhere", (9.9, 10.1), (9.9,), {"fault": "nan", "loss": None}),
                ("stands still", (9.9, 10.1), (9.9,), {"finished": (), "stopped": True}),
                ("waits 70 s, a site ends, unfinished 6/8", (9.9, 80.0), (9.9,),
                 {"finished": (), "stopped": True, "status": {"site-1": 1}}),
                ("ends", (9.9, 10.1), (9.9,), {"finished": (), "status": {"site-0": 1}})):
            with self.subTest(expected):
                self.assertEqual(judged(site, other, **more)["text"], expected)

class PageTest(unittest.TestCase):
    def test_being_ahead_is_said_and_being_behind_is_not(self):
        report = everything()
        calm, cut, site = (report["cells"][f"torchft/1m/{key}"] for key in
                           ("1000mbit,20ms/", "100mbit,100ms/cut", "100mbit,100ms/site"))
        calm |= {"share": 0.999, "loss": 1.5, "took_s": 36.0}
        self.assertEqual(peers_report.better(report, "torchft"),
                         ["computes 10 % more of the time", "1M: 1000/20: loss 1.500 (2.000)", "start/end"])
        calm |= {"share": 0.5, "loss": 2.5, "took_s": 40.0}
        self.assertEqual(peers_report.better(report, "torchft"), [])
        cut["became"] = {"text": "goes on, +0.001", "waited_s": 0.1}
        report["cells"]["causeway-int4/1m/100mbit,100ms/site"]["became"] |= {"worse": 0.025}
        site["became"] |= {"worse": 0.014}
        self.assertEqual(peers_report.better(report, "torchft"),
                         ["site killed: +0.014 (+0.025)", "link cut: goes on, +0.001 (waits 12 s, +0.003)"])

    def test_page_and_figure_are_written_within_their_words(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "docs/figures").mkdir(parents=True)
            peers_report.write(everything(), root, peers_run.why_not)
            page = (root / "docs/reports/peers.md").read_text()
            self.assertLessEqual(len(page.split()), 340)
            self.assertIn("Sites end with different models: hivemind.", page)
            xml.parse(root / "docs/figures/peers.svg")
            self.assertEqual(set(json.loads((root / "docs/figures/peers.json").read_text())), {"cells", "environment"})


if __name__ == "__main__":
    unittest.main(verbosity=2)
