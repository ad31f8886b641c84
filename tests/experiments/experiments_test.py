"""The experiments' machinery: what is run, what is believed, and how it is summed up."""

import contextlib
import io
import json
import shutil
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

import codec_quality
import training_runs
from training_runs import Series, TrainingRun

sys.path.insert(0, str(training_runs.ROOT / "tests" / "unit" / "deploy"))

import fake_programs  # noqa: E402
from causeway_run import config  # noqa: E402

FAKE_STEPS = 60  # What fake_programs pretend to train.


class SeriesTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.out = self.folder / "out"
        self.text = self.folder / "text.txt"
        self.text.write_text("words and words\n", encoding="utf-8")

    def run_all(self, *runs, steps=FAKE_STEPS, **plan):
        """(results, failures, what was said) with programs that behave as planned."""
        programs = Path(tempfile.mkdtemp(dir=self.folder)) / "bin"
        fake_programs.install(programs, **plan)
        series = Series(programs, self.out, steps, corpus=self.text)
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            results, failures = series.run_all(list(runs))
        return results, failures, said.getvalue()

    def test_finished_runs_have_their_figures_and_labels(self):
        results, failures, _ = self.run_all(
            TrainingRun("a", 1, {"codec": "int4"}), TrainingRun("b", 2))
        self.assertEqual(failures, [])
        self.assertEqual([(r["name"], r["seed"], r.get("codec")) for r in results],
                         [("a", 1, "int4"), ("b", 2, None)])
        for result in results:
            self.assertEqual(result["syncs_per_fragment"], FAKE_STEPS // 30)
            self.assertAlmostEqual(result["bytes_per_param_per_sync"]["up"], 0.53125)
            self.assertLess(result["eval_loss"], result["initial_loss"])

    def test_a_finished_run_is_repeated_only_for_other_settings(self):
        run = TrainingRun("a", 1, settings={"sync.codec_up": "INT4"})
        self.run_all(run)
        results, failures, _ = self.run_all(run, worker_0="fail")
        self.assertEqual((len(results), failures), (1, []))
        other = TrainingRun("a", 1, settings={"sync.codec_up": "E3M0"})
        results, failures, _ = self.run_all(other, worker_0="fail")
        self.assertEqual((len(results), len(failures)), (0, 1))

    def test_a_run_that_died_has_no_figures_and_does_not_stop_the_others(self):
        results, failures, said = self.run_all(
            TrainingRun("a", 1), TrainingRun("b", 1), worker_1="fail")
        self.assertEqual(results, [])
        self.assertEqual([line.split(":")[0] for line in failures], ["a", "b"])
        self.assertIn("worker-1 ended with exit status 1", failures[0])
        self.assertIn("FAILED", said)

    def test_a_run_of_fewer_steps_than_planned_has_no_figures(self):
        results, failures, _ = self.run_all(TrainingRun("a", 1), steps=FAKE_STEPS + 1)
        self.assertEqual(results, [])
        self.assertIn("60] steps instead of 61", failures[0])

    def test_a_run_whose_workers_differed_has_no_figures(self):
        self.run_all(TrainingRun("a", 1))
        path = self.out / "a" / "coordinator" / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"hash_mismatches": 1}))
        with self.assertRaisesRegex(training_runs.Incomplete, "1 of 20 checks"):
            training_runs.result_of(self.out / "a", FAKE_STEPS)

    def test_a_round_without_all_workers_makes_figures_unusable(self):
        self.run_all(TrainingRun("a", 1))
        path = self.out / "a" / "coordinator" / "rounds.jsonl"
        path.write_text(path.read_text().replace('"worker-0", ', "", 1))
        with self.assertRaisesRegex(training_runs.Incomplete, "1 rounds closed without all"):
            training_runs.result_of(self.out / "a", FAKE_STEPS)


class SpreadTest(unittest.TestCase):
    def test_interval_of_three_values(self):
        self.assertAlmostEqual(training_runs.intervals([[1.0, 2.0, 3.0]])[0], 4.303 / 3**0.5)

    def test_groups_share_their_spread(self):
        # Squares 2 and 0 over 2 + 1 degrees of freedom; the third group adds none.
        widths = training_runs.intervals([[1.0, 2.0, 3.0], [7.0, 7.0], [4.0]])
        for width, count in zip(widths, (3, 2)):
            self.assertAlmostEqual(width, 3.182 * (2 / 3 / count) ** 0.5)
        self.assertIsNone(widths[2])

    def test_single_values_have_no_spread(self):
        self.assertEqual(training_runs.intervals([[4.0], [5.0], []]), [None, None, None])
        self.assertIsNone(training_runs.deviation([4.0]))

    def test_differences_are_taken_seed_by_seed(self):
        apart = training_runs.differences({1: 2.5, 2: 5.5, 3: 9.0}, {1: 2.0, 2: 5.0})
        self.assertEqual(apart, [0.5, 0.5])
        self.assertEqual(training_runs.differences({1: 2.0}, {2: 2.0}), [])


def _result(inner, setting, seed, loss):
    return {"inner": inner, "setting": setting, "seed": seed, "eval_loss": loss,
            "bytes_per_param_per_sync": {"up": 0.53, "down": 4.0}}


class CodecQualityTest(unittest.TestCase):
    def test_every_setting_is_run_with_both_optimizers_and_all_seeds(self):
        runs = codec_quality.plan([1, 2, 3], 160)
        self.assertEqual(len(runs), 44)
        self.assertEqual(len({run.name for run in runs}), 44)
        fields = {run.name: config.read_fields(run.config_text(160, 2)) for run in runs}
        self.assertEqual({f["sync.steps_between_syncs"] for f in fields.values()}, {"20"})
        sparse = fields["muon-topk2-seed3"]
        self.assertEqual((sparse["sync.codec_up"], sparse["sync.codec_down"]), ("TOPK2", "INT4"))
        self.assertEqual((sparse["outer.learning_rate"], sparse["outer.momentum"]), ("1", "0"))
        self.assertEqual(sparse["train.seed"], "3")
        self.assertEqual(fields["adamw-int4-seed2"]["train.optimizer"], "ADAMW")
        self.assertEqual(fields["adamw-int4-seed2"]["outer.momentum"], "0.6")

    def test_table_marks_what_exceeds_the_spread(self):
        results = [_result("muon", "fp32", seed, 2.0 + seed) for seed in (1, 2, 3)]
        results += [_result("muon", "e3m0", seed, 2.5 + seed) for seed in (1, 2, 3)]
        results += [_result("muon", "int4", seed, 2.0 + seed + 0.1 * (seed - 2))
                    for seed in (1, 2, 3)]
        lines = codec_quality.table(codec_quality.summarize(results)).splitlines()
        self.assertEqual(len(lines), 2 + 3)
        by_name = {line.split("|")[2].strip(): line for line in lines[2:]}
        self.assertIn("| 4.0000 | 1.0000 | - |", by_name["fp32 both ways"])
        # Squares 0.02 over four degrees of freedom.
        self.assertIn("**+0.5000 ± 0.1133**", by_name["e3m0 both ways"])
        self.assertRegex(by_name["int4 both ways"], r"\| .0.0000 ± 0.1133 \|")

    def test_plot_is_an_svg_with_a_panel_for_each_optimizer(self):
        results = [_result(inner, setting, seed, 2.0 + shift)
                   for inner in ("adamw", "muon") for seed in (1, 2)
                   for setting, shift in (("fp32", 0.0), ("int4", 0.01), ("topk2", 0.5))]
        svg = codec_quality.plot(codec_quality.summarize(results))
        self.assertEqual(xml.fromstring(svg.split("\n", 1)[1]).tag,
                         "{http://www.w3.org/2000/svg}svg")
        for text in ("AdamW inside", "Muon inside", "int4 both ways", "+0.500"):
            self.assertIn(text, svg)

    def test_bad_settings_are_refused(self):
        for option in ("--seeds=1,x", "--steps=39", "--runs=(", "--programs=/nowhere"):
            with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as ended:
                codec_quality.main([option])
            self.assertEqual(ended.exception.code, 2, option)


if __name__ == "__main__":
    unittest.main()
