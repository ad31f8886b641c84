"""The plan, the judgements, the tables and the page, from made-up trainings: needs no network and no peer."""

import contextlib
import io
import itertools
import json
import tempfile
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path
from unittest import mock

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
    def refused(self, *arguments):
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit) as ended:
            peers_run.parse_arguments(arguments)
        self.assertEqual(ended.exception.code, 2)
        return said.getvalue()

    def test_links(self):
        link = peers_run.link_of("20mbit,200ms,0.1%")
        self.assertEqual((link.rate_mbit, link.rtt_ms, link.loss_percent), (20, 200, 0.1))
        self.assertEqual(peers_run.link_of("1000mbit,20ms").loss_percent, 0)
        for text in ("100,20", "0mbit,1ms", "100mbit", "100mbit,20ms,1"):
            self.assertIn(f"not '{text}'", self.refused("--link", text))

    def test_peers_by_name_and_by_the_beginning_of_several(self):
        self.assertEqual(peers_run.parse_arguments(["--peers", "ddp,flower"]).peers,
                         ["ddp-bf16", "ddp-powersgd", "flower"])
        self.assertIn("there is no 'floweret'", self.refused("--peers", "floweret"))

    def test_whole_plan_has_each_cell_once_and_reasons_for_the_rest(self):
        cells = peers_run.planned(peers_run.parse_arguments([]))
        self.assertEqual(len(cells), len({key for key, *_ in cells}))
        for name in ROWS:
            calm = [(model.name, link) for _, row, model, link, fault in cells if row == name and not fault]
            self.assertEqual(len(calm), 1 if name == "alone" else 4)
            for fault in FAULTS:
                planned = any(row == name and one == fault for _, row, _, _, one in cells)
                self.assertNotEqual(planned, bool(peers_run.why_not(name, fault)), (name, fault))

    def test_narrow_plan(self):
        cells = peers_run.planned(peers_run.parse_arguments(["--peers", "torchft", "--link", "5mbit,10ms", "--quick"]))
        self.assertEqual([key for key, *_ in cells], ["torchft/1m/5mbit,10ms/"])
        cells = peers_run.planned(peers_run.parse_arguments(["--peers", "ddp-bf16", "--faults", "cut,join"]))
        self.assertEqual([key for key, *_ in cells], [f"ddp-bf16/1m/{peers_run.FAULT_LINK}/cut"])


class JudgeTest(unittest.TestCase):
    def test_goes_on(self):
        became = judged((9.9, 10.1, 10.4), (9.9, 21.0))
        self.assertEqual(became["text"], "goes on, +0.010")
        self.assertEqual((became["begun_at"], became["longer_s"], became["more_bytes"]), (1, 10.0, 80))

    def test_goes_on_without_the_one_that_never_came_back(self):
        self.assertEqual(judged((9.9, 10.1, 10.4), (9.9,), finished=("0",))["text"], "goes on, without it, +0.010")

    def test_waits(self):
        self.assertEqual(judged((9.9, 10.1, 22.4), (9.9, 22.0))["text"], "waits 12 s, +0.010")

    def test_one_of_two_ends_or_is_not_finished(self):
        for status, said in ((1, "a site ends"), (-9, "a site ends"), (None, "one site unfinished (5/8)"),
                             (0, "one site unfinished (5/8)")):
            self.assertEqual(judged((9.9, 10.1, 70.0), (9.9, 70.0), "server", finished=("0",),
                                    status={"site-1": status})["text"], f"waits 60 s, {said}, +0.010")

    def test_site_that_was_not_hit_is_judged_though_the_other_alone_finished(self):
        self.assertEqual(judged((9.9, 10.1, 22.4), (9.9, 10.1, 70.0), finished=("1",), stopped=True)["text"],
                         "waits 12 s, unfinished 6/8, +0.010")

    def test_starts_again(self):
        self.assertEqual(judged(((4, 9.9), (5, 10.0), (4, 24.0), (5, 24.3)), ((4, 24.0),))["text"],
                         "starts again, +0.010")

    def test_bad_ends(self):
        self.assertEqual(judged((9.9, 10.1), (9.9,), "nan", loss=None)["text"], "NaN everywhere")
        self.assertEqual(judged((9.9, 10.1), (9.9,), finished=(), stopped=True)["text"], "stands still")
        self.assertEqual(judged((9.9, 80.0), (9.9,), finished=(), stopped=True)["text"], "waits 70 s, unfinished 6/8")
        self.assertEqual(judged((9.9, 80.0), (9.9,), finished=(), stopped=True, status={"site-1": 1})["text"],
                         "waits 70 s, a site ends, unfinished 6/8")
        self.assertEqual(judged((9.9, 10.1), (9.9,), finished=(), status={"site-0": 1})["text"], "ends")

    def test_ranks(self):
        texts = ["goes on, +0.001", "goes on, without it", "waits 3 s", "waits 3 s, a site ends", "starts again",
                 "NaN everywhere", "waits 60 s, unfinished 1/8", "stands still", "ends"]
        ranks = [peers_report.rank({"text": text}) for text in texts]
        self.assertEqual(ranks, sorted(ranks))
        self.assertEqual(len(set(ranks)), len(ranks))


class PageTest(unittest.TestCase):
    def test_tables_have_what_was_measured_and_say_what_was_not(self):
        report = everything()
        figures = peers_report.figures_table(report).splitlines()
        self.assertEqual(len(figures), 2 + len(ROWS))
        self.assertIn("| |1M<br>1000/20|1M<br>100/100|1M<br>20/200/0.1%|10M<br>100/100|", figures[0])
        self.assertIn("|90|", figures[2])
        self.assertIn("|-|", figures[-1])
        del report["cells"]["torchft/1m/100mbit,100ms/cut"]
        for key in [key for key in report["cells"] if key.startswith("hivemind/")]:
            del report["cells"][key]
        self.assertIn("|hivemind|not run|not run|not run|not run|-|", peers_report.figures_table(report))
        self.assertIn("|hivemind|local updates, fp16, H=32, matchmaking 2 s|not run|",
                      peers_report.page(report, peers_run.why_not))
        faults = peers_report.faults_table(report, peers_run.why_not)
        self.assertIn("not run", faults)
        self.assertIn("fixed world size", faults)
        self.assertIn("|LocalSGD|as DDP|||||", faults)

    def test_memory_is_left_out_where_it_was_measured_otherwise(self):
        report = everything()
        self.assertIn("|600/30|", peers_report.figures_table(report))
        for cell in report["cells"].values():
            cell["memory"] = {"site": 1, "server": 1}
            del cell["machine_memory"]
        self.assertNotIn("MB", peers_report.figures_table(report))
        self.assertEqual(peers_report.better(report, "torchft"), [])

    def test_stopped_training_is_marked(self):
        report = everything()
        report["cells"]["ddp-bf16/1m/1000mbit,20ms/"] |= {"whole": False, "stopped": True, "loss": None, "equal": None}
        self.assertRegex(peers_report.figures_table(report), r"\|DDP bf16\|\d+\*\|")
        with mock.patch("plots.shares") as drawn, mock.patch("plots.standalone"):
            peers_report.figure(report)
        (groups, _), _ = drawn.call_args
        self.assertEqual([name for name, _ in groups[0][1] if "*" in name], ["DDP bf16*"])

    def test_row_that_never_ended_is_described_by_its_longest_training(self):
        report = everything()
        for key, cell in report["cells"].items():
            if key.startswith("ddp-powersgd/"):
                longest = key == "ddp-powersgd/1m/1000mbit,20ms/"
                cell |= {"whole": False, "done": [90, 90] if longest else [70, 70]}
                cell["bytes_per_step"] = {"up": 224e3 if longest else 412e3, "down": 225e3}
        self.assertIn("|224/225|", peers_report.figures_table(report))

    def test_being_ahead_is_said_and_being_behind_is_not(self):
        report = everything()
        report["cells"]["torchft/1m/1000mbit,20ms/"] |= {"share": 0.999, "loss": 1.5}
        said = peers_report.better(report, "torchft")
        self.assertIn("computes 10 % more of the time", said)
        self.assertIn("1M: 1000/20: loss 1.500 (2.000)", said)
        report["cells"]["torchft/1m/1000mbit,20ms/"] |= {"share": 0.5, "loss": 2.5}
        self.assertEqual(peers_report.better(report, "torchft"), [])
        report["cells"]["torchft/1m/100mbit,100ms/cut"]["became"] = {"text": "goes on, +0.001", "waited_s": 0.1}
        self.assertEqual(peers_report.better(report, "torchft"),
                         ["link cut: goes on, +0.001 (waits 12 s, +0.003)"])

    def test_being_ahead_by_little_or_after_a_fault_is_said(self):
        report = everything()
        ours, theirs = (report["cells"][f"{name}/1m/100mbit,100ms/site"] for name in (peers_report.OURS, "torchft"))
        for cell, worse, done in ((ours, 0.025, 152), (theirs, 0.014, 173)):
            cell["became"] |= {"worse": worse}
            cell["done"] = [256, done]
        report["cells"]["torchft/1m/1000mbit,20ms/"] |= {"loss": 1.998, "took_s": 36.0}
        self.assertEqual(peers_report.better(report, "torchft"),
                         ["1M: 1000/20: loss 1.998 (2.000)", "start/end", "site killed: +0.014 (+0.025), 173 steps (152)"])
        theirs["loss"] = None
        self.assertNotIn("173", str(peers_report.better(report, "torchft")))

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
