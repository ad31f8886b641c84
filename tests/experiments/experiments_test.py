"""The experiments' machinery: what is run, what is believed, and how it is summed up."""

import contextlib
import io
import json
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

import parity_report
import study_report
import training_runs
import variants
from training_runs import Series, TrainingRun

sys.path.insert(0, str(training_runs.ROOT / "tests" / "unit" / "deploy"))

import fake_programs  # noqa: E402
from causeway.demo import config  # noqa: E402

FAKE_STEPS = 60  # Steps that fake_programs pretend to train.


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

    def test_a_finished_run_has_its_figures_and_is_repeated_only_for_other_settings(self):
        int4 = {"sync.codec_up": "INT4"}
        (result,), failures, _ = self.run_all(TrainingRun("a", 1, {"codec": "int4"}, int4))
        self.assertEqual((result["name"], result["seed"], result["codec"], failures), ("a", 1, "int4", []))
        self.assertEqual(result["syncs_per_fragment"], FAKE_STEPS // 30)
        self.assertAlmostEqual(result["bytes_per_param_per_sync"]["up"], 0.53125)
        self.assertLess(result["eval_loss"], result["initial_loss"])
        # The same, the same in other words, and another one.
        for settings, finished in ((int4, 1), ({**int4, "model.untied_head": "false"}, 1),
                                   ({"sync.codec_up": "E3M0"}, 0)):
            results, failures, _ = self.run_all(TrainingRun("a", 1, settings=settings), worker_0="fail")
            self.assertEqual((len(results), len(failures)), (finished, 1 - finished))

    def test_what_did_not_end_as_planned_has_no_figures_and_stops_no_other(self):
        tokens = 2 * FAKE_STEPS * 8 * 256
        for name, steps, run, plan, why in (
                ("died", FAKE_STEPS, {}, {"worker_1": "fail"}, "worker-1 ended with exit status 1"),
                ("short", FAKE_STEPS + 1, {}, {}, "60] steps instead of 61"),
                ("few", FAKE_STEPS, {"tokens": 2 * tokens}, {}, f"trained {tokens} tokens instead of")):
            results, failures, said = self.run_all(
                TrainingRun(f"{name}-a", 1, **run), TrainingRun(f"{name}-b", 1, **run), steps=steps, **plan)
            self.assertEqual((results, len(failures)), ([], 2))
            self.assertIn(why, failures[0])
            self.assertIn("FAILED", said)

    def test_differing_workers_and_rounds_without_one_have_no_figures(self):
        for name, change, why in (
                ("summary.json", lambda text: json.dumps(json.loads(text) | {"hash_mismatches": 1}), "1 of 20 checks"),
                ("rounds.jsonl", lambda text: text.replace('"worker-0", ', "", 1), "1 rounds closed without all")):
            self.run_all(TrainingRun("a", 1))
            path = self.out / "a" / "coordinator" / name
            whole = path.read_text()
            path.write_text(change(whole))
            with self.assertRaisesRegex(training_runs.Incomplete, why):
                training_runs.result_of(self.out / "a", FAKE_STEPS)
            path.write_text(whole)


class SpreadTest(unittest.TestCase):
    def test_groups_share_their_spread(self):
        # Squares 2 and 0 over 2 + 1 degrees of freedom; the third group adds none.
        widths = training_runs.intervals([[1.0, 2.0, 3.0], [7.0, 7.0], [4.0]])
        for width, count in zip(widths, (3, 2)):
            self.assertAlmostEqual(width, 3.182 * (2 / 3 / count) ** 0.5)
        self.assertIsNone(widths[2])


def _study_result(inner, variant, seed, loss):
    return {"name": f"small-{inner}-{variant}-seed{seed}", "inner": inner, "variant": variant,
            "seed": seed, "eval_loss": loss, "bytes_per_worker": {"up": 1e6, "down": 3e6},
            "state_bytes_per_worker": 1e6, "syncs_per_fragment": 20, "rounds": 80,
            "tokens": 1000, "elapsed_seconds": 60.0,
            "parameters": 300000, "eval_curve": [[0, 5.0], [100, loss + 1], [600, loss]]}


class StudyTest(unittest.TestCase):
    def test_all_runs_of_a_scale_train_on_equally_many_tokens(self):
        for scale in variants.SCALES.values():
            for run in variants.plan(list(variants.EXPERIMENTS), list(variants.INNER), [1], scale):
                fields = config.read_fields(run.config_text(scale.steps))
                windows = int(fields["train.batch_sequences"]) * run.workers
                tokens = windows * int(fields["model.sequence_length"]) * scale.steps
                self.assertEqual((tokens, run.tokens), (scale.tokens, scale.tokens), run.name)
                self.assertEqual(fields["membership.max_workers"], str(run.workers))

    def test_single_differences_are_judged_by_the_spread_of_the_headlines(self):
        results = [_study_result("muon", "streaming", seed, 2.0 + seed) for seed in (1, 2, 3)]
        # Differences -0.01, 0, 0.01: a deviation of 0.01, and 4.303 times that for one difference.
        results += [_study_result("muon", "e3m0", seed, 2.0 + seed + 0.01 * (seed - 2))
                    for seed in (1, 2, 3)]
        results += [_study_result("muon", "H10", 1, 2.96), _study_result("muon", "H100", 1, 3.2)]
        self.assertAlmostEqual(study_report.noise(results)["muon"], 0.04303)
        self.assertIsNone(study_report.noise(results)["adamw"])
        report = study_report.summarize(results, ["period"])[0]
        text = study_report.table(report)
        self.assertIn("| Muon | H 10 | 1 | 2.9600 | - | \N{MINUS SIGN}0.0400 | 1.00 / 2.00 |", text)
        self.assertIn("| **+0.2000** |", text)
        self.assertIn("minus H 30, same seed", text)
        self.assertIn("| Muon | H 30 | 1 | 3.0000 | - |", text)  # First seed, as the others.


def _long_result(scale, variant, seed, loss):
    steps = variants.SCALES[scale].steps
    return {"name": f"{scale}-muon-{variant}-seed{seed}", "scale": scale, "inner": "muon",
            "variant": variant, "seed": seed, "steps": steps, "eval_loss": loss, "tokens": steps * 2048,
            "parameters": 336896, "syncs_per_fragment": steps // 30,
            "bytes_per_param_per_sync": {"up": 0.53, "down": 0.53},
            "eval_curve": [[0, 5.0], [steps // 2, 9.0], [steps - 20, loss + 0.02], [steps, loss]]}


class ParityReportTest(unittest.TestCase):
    def report(self, *results):
        return parity_report.summarize(list(results), [1, 2, 3])

    def test_the_baseline_is_the_best_over_seeds_that_all_have(self):
        results = [_long_result("small-6k", "plain", seed, 2.0) for seed in (1, 2, 3, 101)]
        self.assertEqual(self.report(*results)[0]["baseline"], "plain")
        results += [_long_result("small-6k", "plain-mu0.9", seed, 1.9) for seed in (3, 101)]
        results += [_long_result("small-6k", "plain-rates0.5", seed, loss) for seed, loss in ((101, 1.95), (4, 1))]
        report = self.report(*results)[0]
        self.assertEqual(report["baseline"], "plain-mu0.9")
        self.assertEqual({row["variant"]: row["seeds"] for row in report["rows"]},
                         {"plain": [1, 2, 3], "plain-mu0.9": [3]})

    def test_gaps_are_taken_seed_by_seed_with_their_interval(self):
        results = [_long_result("small-6k", "plain", seed, 2.0 + seed) for seed in (1, 2, 3)]
        results += [_long_result("small-6k", "mean", seed, 2.01 + seed + 0.001 * (seed - 2))
                    for seed in (1, 2, 3)]
        results += [_long_result("small-6k", "mean-M4", 1, 3.05), _long_result("small-2k", "mean", 1, 3.0)]
        reports = self.report(*results)
        self.assertEqual([report["scale"] for report in reports], ["small-6k"])  # The other has no baseline.
        rows = {row["variant"]: row for row in reports[0]["rows"]}
        self.assertAlmostEqual(rows["mean"]["minus_baseline"], 0.01)
        self.assertAlmostEqual(rows["mean"]["interval_95"], 4.303 * 0.001 / 3**0.5)
        self.assertTrue(rows["mean"]["clear"])
        self.assertIsNone(rows["mean-M4"]["interval_95"])
        self.assertAlmostEqual(reports[0]["range_of_one_difference_95"], 4.303 * 0.001)
        text = parity_report.table(reports)
        self.assertIn("| **+0.0100 ± 0.0025** | +0.0090, +0.0100, +0.0110 | 0.0177 / 0.0177 |", text)
        self.assertIn("| 36.5 | Muon | mean, M 4 | 4 | 1 | 3.0600 | **+0.0500** |", text)


if __name__ == "__main__":
    unittest.main()
