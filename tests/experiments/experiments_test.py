"""The experiments' machinery: what is run, what is believed, and how it is summed up."""

import contextlib
import gzip
import io
import json
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import xml.etree.ElementTree as xml
from pathlib import Path

import compare_reports
import parity_report
import prose
import study
import study_report
import training_runs
import variants
from training_runs import Series, TrainingRun

sys.path.insert(0, str(training_runs.ROOT / "tests" / "unit" / "deploy"))

import fake_programs  # noqa: E402
import fake_run  # noqa: E402
from causeway.demo import config, report  # noqa: E402

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
        # The same in other words.
        said = TrainingRun("a", 1, settings={"sync.codec_up": "INT4", "model.untied_head": "false"})
        results, failures, _ = self.run_all(said, worker_0="fail")
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

    def test_a_run_may_have_its_own_workers_and_must_have_its_tokens(self):
        tokens = 2 * FAKE_STEPS * 8 * 256
        results, failures, _ = self.run_all(TrainingRun("a", 1, workers=2, tokens=tokens))
        self.assertEqual(([r["tokens"] for r in results], failures), ([tokens], []))
        results, failures, _ = self.run_all(TrainingRun("b", 1, tokens=2 * tokens))
        self.assertEqual(results, [])
        self.assertIn(f"trained {tokens} tokens instead of {2 * tokens}", failures[0])

    def test_prose_is_written_once_and_made_into_shards(self):
        programs = self.folder / "bin"
        fake_programs.install(programs)
        folder = self.folder / "doc"
        with unittest.mock.patch.object(prose, "FOLDERS", (str(folder),)):
            for package in range(20):
                (folder / str(package)).mkdir(parents=True)
                (folder / str(package) / "README").write_text(f"Words that are said about package {package}. " * 60,
                                                              encoding="utf-8")
            for _ in range(2):
                with contextlib.redirect_stderr(io.StringIO()):
                    results, failures = Series(programs, self.out, FAKE_STEPS, prose=True).run_all(
                        [TrainingRun("a", 1)])
                self.assertEqual((len(results), failures), (1, []))
                shutil.rmtree(folder, ignore_errors=True)
        self.assertEqual(json.loads((self.out / "text" / "prose.json").read_text())["documents"], 20)
        made = json.loads((self.out / "text" / "data" / "data.json").read_text())
        self.assertEqual((made["tokenizer"], made["documents"]), ("bytes", 20))
        self.assertGreater(made["held_out_tokens"], 2000)  # The 20th.


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


def _study_result(inner, variant, seed, loss):
    return {"name": f"small-{inner}-{variant}-seed{seed}", "inner": inner, "variant": variant,
            "seed": seed, "eval_loss": loss, "bytes_per_worker": {"up": 1e6, "down": 3e6},
            "state_bytes_per_worker": 1e6, "syncs_per_fragment": 20, "rounds": 80,
            "tokens": 1000, "elapsed_seconds": 60.0,
            "parameters": 300000, "eval_curve": [[0, 5.0], [100, loss + 1], [600, loss]]}


class StudyTest(unittest.TestCase):
    small = variants.SCALES["small"]

    def test_all_runs_of_a_scale_train_on_equally_many_tokens(self):
        for scale in variants.SCALES.values():
            for run in variants.plan(list(variants.EXPERIMENTS), list(variants.INNER), [1], scale):
                fields = config.read_fields(run.config_text(scale.steps, 2))
                windows = int(fields["train.batch_sequences"]) * run.workers
                tokens = windows * int(fields["model.sequence_length"]) * scale.steps
                self.assertEqual((tokens, run.tokens), (scale.tokens, scale.tokens), run.name)
                self.assertEqual(fields["membership.max_workers"], str(run.workers))

    def test_the_papers_shapes_are_configurations_already(self):
        config_file = Path(tempfile.mkdtemp()) / "run.textproto"
        self.addCleanup(shutil.rmtree, config_file.parent)
        for name in ("small", "paper-35m", "paper-100m"):
            scale = variants.SCALES[name]
            for run in variants.plan(["parity", "codecs"], ["adamw", "muon"], [1], scale):
                config_file.write_text(run.config_text(scale.steps, run.workers))
                done = subprocess.run([BIN / "causewayctl", "config", "check", config_file],
                                      capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 0, f"{run.name}: {done.stderr}")

    def test_experiments_share_runs(self):
        names = [run.name for run in variants.plan(
            ["period", "overlap", "mixing"], ["muon"], [1], self.small)]
        self.assertEqual(names.count("small-muon-streaming-seed1"), 1)
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(len(names), 3 + 4 + 3)

    def test_headlines_have_all_seeds_and_the_others_the_first(self):
        runs = variants.plan(["codecs", "period"], ["adamw"], [1, 2, 3], self.small)
        seeds = {variant: [run.seed for run in runs if run.labels["variant"] == variant]
                 for variant in ("e3m0", "streaming", "H10")}
        self.assertEqual(seeds, {"e3m0": [1, 2, 3], "streaming": [1, 2, 3], "H10": [1]})
        self.assertEqual([run.seed for run in runs], sorted(run.seed for run in runs))

    def test_gradients_are_exchanged_with_adamw_alone(self):
        runs = variants.plan(["parity"], ["adamw", "muon"], [1], self.small)
        parallel = [run for run in runs if run.labels["variant"] == "data-parallel"]
        self.assertEqual([run.labels["inner"] for run in parallel], ["adamw"])
        fields = config.read_fields(parallel[0].config_text(600, 2))
        self.assertEqual((fields["sync.contribution"], fields["sync.codec_up"]),
                         ("GRADIENT", "BF16"))

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

    def test_every_experiment_becomes_json_and_a_plot(self):
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        results = [_study_result(inner, name, seed, 2.0 + 0.01 * seed + 0.001 * len(name))
                   for name, variant in variants.VARIANTS.items() for inner in variant.inner
                   for seed in (1, 2)]
        reports = study_report.summarize(results, list(variants.EXPERIMENTS))
        study_report.write(folder, reports,
                           study_report.overview(results, self.small, len(results), []))
        for name in variants.EXPERIMENTS:
            self.assertEqual(xml.fromstring((folder / f"{name}.svg").read_text().split("\n", 1)[1]).tag,
                             "{http://www.w3.org/2000/svg}svg")
            self.assertTrue(json.loads((folder / f"{name}.json").read_text())["rows"])
        summary = json.loads((folder / "summary.json").read_text())
        self.assertEqual(summary["runs_finished"], len(results))
        self.assertAlmostEqual(summary["minutes"], len(results), delta=0.1)

    def test_long_runs_are_asked_for_by_name_alone(self):
        with contextlib.redirect_stdout(io.StringIO()) as names:
            study.main(["all", "--list", "--inner=muon"])
        self.assertNotIn("mean", names.getvalue())
        fields = config.read_fields(variants.training_run(
            "mean-keep", "muon", 1, variants.SCALES["small-6k"]).config_text(6000, 2))
        self.assertEqual([fields[f"sync.{name}"] for name in ("keep_in_flight", "mixing", "codec_up")],
                         ["1", "0", "INT4"])
        self.assertEqual((fields["train.evaluate_every_steps"], fields["train.evaluation_sequences"]),
                         ("250", "1024"))

    def test_what_cannot_be_run_is_refused(self):
        for options in (["none"], ["all", "--seeds=x"], ["all", "--inner=sgd"], ["all", "--runs=("],
                        ["all", "--scale=paper-35m", "--programs=/"], ["all", "--data=/nowhere"],
                        ["all", "--programs=/nowhere"]):
            with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as ended:
                study.main(options)
            self.assertEqual(ended.exception.code, 2, options)


class ProseTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, **files):
        """The documents made of files by name."""
        texts = self.folder / "texts"
        for name, content in files.items():
            path = texts / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        contents = prose.write(self.folder / "prose.jsonl", (str(texts),))
        lines = (self.folder / "prose.jsonl").read_text(encoding="utf-8").splitlines()
        self.assertEqual(contents["documents"], len(lines))
        return sorted(json.loads(line)["text"] for line in lines)

    @staticmethod
    def paragraph(word, count=12):
        return " ".join([f"The {word} of this package is described where it is used."] * count)

    def test_markup_is_left_out_and_paragraphs_are_lines(self):
        first, second, third = (self.paragraph(word) for word in ("first", "second", "third"))
        manual = f".TH x\n\\fB{first[:100]}\\fR\n{first[100:]}\n.PP\n{second}\n"
        texts = self.write(**{
            "man__man1__x.1.gz": gzip.compress(manual.encode()),
            "x.html": f"<head>no</head><p>{third[:50]}<b>{third[50:]}</b></p><pre>{'code. ' * 99}</pre>".encode()})
        self.assertEqual(texts, sorted([f"{first[:100]} {first[100:].lstrip()}\n\n{second}\n".replace("  ", " "),
                                        f"{third}\n"]))

    def test_what_was_said_before_or_is_no_prose_is_left_out(self):
        same, other = self.paragraph("same"), self.paragraph("other")
        texts = self.write(**{"README": f"{same}\n\n{other}\n".encode(), "a.txt": f"{same}\n".encode(),
                              "table.txt": b"0x12 0x34 | 17 % 25;\n" * 99, "data.txt": b"\0 text. " * 99,
                              "latin.txt": b"\xe4 text. " * 99, "changelog.txt": self.paragraph("change").encode(),
                              "code.cc": self.paragraph("code").encode()})
        said = "".join(texts)  # The paragraph in both is in the document that came first.
        self.assertEqual([said.count(f"The {word} of") for word in ("same", "other", "change", "code")],
                         [12, 12, 0, 0])
        self.assertNotRegex(said, "0x12|text")


def _long_result(scale, variant, seed, loss):
    steps = variants.SCALES[scale].steps
    return {"name": f"{scale}-muon-{variant}-seed{seed}", "scale": scale, "inner": "muon",
            "variant": variant, "seed": seed, "steps": steps, "eval_loss": loss, "tokens": steps * 2048,
            "parameters": 336896, "syncs_per_fragment": steps // 30,
            "bytes_per_param_per_sync": {"up": 0.53, "down": 0.53},
            "eval_curve": [[0, 5.0], [steps // 2, 9.0], [steps - 20, loss + 0.02], [steps, loss]]}


class CompareReportsTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def test_three_modes_make_one_plot_and_one_table(self):
        outs = [self.folder / mode for mode in config.MODES]
        for out in outs:
            fake_run.write_fake_run(out, out.name, steps=60)
            report.write_report(out)
        svg = self.folder / "figures" / "modes.svg"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            self.assertEqual(compare_reports.main([*map(str, outs), "--svg", str(svg)]), 0)
        rows = printed.getvalue().splitlines()
        self.assertEqual(len(rows), 5)
        self.assertEqual(len({row.count("|") for row in rows}), 1)
        self.assertTrue(rows[2].startswith("| streaming |"))
        self.assertEqual(xml.parse(svg).getroot().tag, "{http://www.w3.org/2000/svg}svg")

    def test_folder_without_report_is_refused_by_name(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.assertEqual(compare_reports.main([str(self.folder)]), 2)
        self.assertIn("report.json", said.getvalue())


class ParityReportTest(unittest.TestCase):
    def report(self, *results):
        return parity_report.summarize(list(results), [1, 2, 3])

    def test_the_loss_is_the_mean_of_the_last_evaluations(self):
        self.assertAlmostEqual(parity_report.tail_loss(_long_result("small-6k", "plain", 1, 2.0)), 2.01)

    def test_the_baseline_is_the_best_over_seeds_that_all_have(self):
        results = [_long_result("small-6k", "plain", seed, 2.0) for seed in (1, 2, 3, 101)]
        self.assertEqual(self.report(*results)[0]["baseline"], "plain")
        results += [_long_result("small-6k", "plain-mu0.9", seed, 1.9) for seed in (3, 101)]
        results += [_long_result("small-6k", "plain-rates0.5", seed, loss) for seed, loss in ((101, 1.95), (4, 1))]
        report = self.report(*results)[0]
        self.assertEqual(report["baseline"], "plain-mu0.9")
        self.assertEqual({row["variant"]: row["seeds"] for row in report["rows"]},
                         {"plain": [1, 2, 3], "plain-mu0.9": [3]})

    def test_a_scale_without_the_seeds_of_claims_has_those_it_has(self):
        results = [_long_result("small-2k", name, 101, loss) for name, loss in (("plain", 2.0), ("mean", 2.1))]
        results += [_long_result("small-6k", name, seed, loss) for seed in (1, 101)
                    for name, loss in (("plain", 2.0), ("mean", 2.1))]
        self.assertEqual([[row["seeds"] for row in report["rows"]] for report in self.report(*results)],
                         [[[101], [101]], [[1], [1]]])
        # Rates for data parallelism may have been tried with other seeds alone: no baseline then.
        results.append(_long_result("small-6k", "plain-rates0.5", 101, 1.9))
        report = self.report(*results)[1]
        self.assertEqual(report["baseline"], "plain")

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

    def test_gaps_by_workers_are_means_over_seeds(self):
        results = [_long_result("small-6k", "plain", seed, 2.0 + seed) for seed in (1, 2)]
        results += [_long_result("small-6k", name, seed, loss + seed) for name, loss, seeds in (
            ("mean", 2.01, (1, 2)), ("mean-M4", 2.03, (1,)), ("mean-M4-lm2-H16", 2.015, (1, 2)),
            ("mean-M4-sign1-H8", 2.012, (2,))) for seed in seeds]
        lines = parity_report.worker_table(self.report(*results)[0]).splitlines()
        self.assertEqual(lines[0], "| workers | mean: outer 1 / 0, alpha 0 | mean, lm2 both ways, H 16 | "
                         "mean, sign1 both ways, H 8 |")
        self.assertEqual(lines[2], "| 2 | **+0.0100 ± 0.0000** (2) | - | - |")
        self.assertEqual(lines[3], "| 4 | **+0.0300** (1) | **+0.0150 ± 0.0000** (2) | **+0.0120** (1) |")
        self.assertEqual(lines[4].split(" | ")[0], "| bytes up")
        self.assertEqual(len(lines), 5)

    def test_the_figure_has_both_panels(self):
        results = [_long_result(scale, name, seed, 2.0 + 0.001 * seed + 0.01 * len(name))
                   for scale in ("small-2k", "small-6k") for seed in (1, 2)
                   for name in ("plain", "mean", "mean-keep", "mean-M4")]
        svg = parity_report.plot(self.report(*results))
        self.assertEqual(xml.fromstring(svg.split("\n", 1)[1]).tag, "{http://www.w3.org/2000/svg}svg")
        for words in ("over tokens per parameter", "over workers M, 36 tokens", "mean that keeps",
                      "over the 6000 steps"):
            self.assertIn(words, svg)

    def test_an_earlier_report_counts_as_its_runs_would(self):
        def runs(seeds):
            return [_long_result("small-6k", name, seed, loss + 0.001 * seed * len(name))
                    for name, loss in (("plain", 2.0), ("mean", 2.01)) for seed in seeds]

        with tempfile.TemporaryDirectory() as folder:
            earlier = Path(folder) / "parity.json"
            earlier.write_text(json.dumps(self.report(*runs((1, 2)))))
            joined = self.report(*parity_report.load_earlier(earlier, runs((3,))), *runs((3,)))
            self.assertEqual(parity_report.table(joined), parity_report.table(self.report(*runs((1, 2, 3)))))
            again = runs((2,))
            self.assertEqual(len(parity_report.load_earlier(earlier, again)), 2)  # Seed 2 counts once.
            again[0]["eval_curve"] = [[6000, 1.0]]
            with self.assertRaisesRegex(ValueError, "'plain', 2.* came out differently"):
                parity_report.load_earlier(earlier, again)
            with self.assertRaisesRegex(ValueError, "'small-6k', 'muon', 2.*no run is in both"):
                parity_report.load_earlier(earlier, [_long_result("small-6k", "mean-H10", 2, 2.0)])

    def test_the_gap_over_a_run_is_that_of_the_seeds_both_have(self):
        results = [_long_result("small-6k", "plain", seed, 2.0 + seed) for seed in (1, 2)]
        results += [_long_result("small-6k", "mean", seed, 2.01 + seed) for seed in (2, 3)]
        report = self.report(*results)[0]
        points = parity_report.gap_curves(report)["mean"]
        self.assertEqual([step for step, _ in points], [3000, 5980, 6000])
        self.assertAlmostEqual(points[-1][1], 0.01)
        self.assertIn("| mean: outer 1 / 0, alpha 0 | - | +0.0000 | - | - | +0.0100 |",
                      parity_report.curve_table(report))


if __name__ == "__main__":
    BIN = Path(sys.argv.pop(1))
    unittest.main()
