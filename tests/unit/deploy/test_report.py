"""The report, on runs that were made up."""

import contextlib
import io
import json
import shutil
import tempfile
import unittest
from pathlib import Path

import fake_run  # First: it puts the package on the path.

from causeway.demo import config, progress, report, units


class TemporaryFolder(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.out = self.folder / "out"

    def report_of(self, mode="streaming", **arguments) -> dict:
        fake_run.write_fake_run(self.out, mode, **arguments)
        report.write_report(self.out)
        return json.loads((self.out / "report.json").read_text(encoding="utf-8"))


class CompleteRun(TemporaryFolder):
    def test_streaming_run_states_what_its_workers_wrote(self):
        numbers = self.report_of(steps=300, workers=2)
        up, fetched = 5_312_500, 4_000_000  # Four bits with scales, and what a worker fetched when it joined.
        stated = {
            "mode": "streaming", "trainer": "causeway", "params": 1_000_000, "steps": 300, "workers": 2, "rounds": 50,
            "fragments": 5, "hash_checks": 100, "hash_mismatches": 0, "notes": [],
            "eval_loss": numbers["eval_curve"][-1][1],
            "compute_utilization": {"mean": 0.95, "worker-0": 0.95, "worker-1": 0.95},
            "bytes_per_param_per_sync": {"up": 0.53125, "down": 0.53125},
            "bytes_up": {"worker-0": up, "worker-1": up},
            "bytes_down": {"worker-0": up + fetched, "worker-1": up + fetched},
            "state_bytes_down": {"worker-0": fetched, "worker-1": fetched},
            # Gradients of every step, up and down.
            "data_parallel_bytes": 2 * 2 * 1_000_000 * 300}
        self.assertEqual({name: numbers[name] for name in stated}, stated)
        self.assertEqual([step for step, _ in numbers["eval_curve"]], [0, 50, 100, 150, 200, 250, 300])
        for name, value in (("initial_loss", 5.545), ("tokens_per_second", 2 * 2048 / 0.15), ("wall_seconds", 45),
                            ("data_parallel_ratio", 1_200_000_000 / (2 * up + fetched))):
            self.assertAlmostEqual(numbers[name], value)

    def test_data_parallel_run_saves_nothing(self):
        numbers = self.report_of("data-parallel", steps=60)
        self.assertEqual(numbers["mode"], "data-parallel")
        moved = 2 * 2_000_000 * 60
        self.assertAlmostEqual(numbers["data_parallel_ratio"], moved / (moved + 4_000_000))

    def inside(self) -> dict:
        """What the page has inside."""
        page = (self.out / "report.html").read_text(encoding="utf-8")
        self.assertEqual(page.count("<script"), 1)
        return json.loads(page.partition('id="answers">')[2].partition("</script>")[0])

    def test_the_page_is_the_coordinators_with_the_sample(self):
        self.report_of()
        sample = (self.out / "sample.txt").read_text(encoding="utf-8").removesuffix("\n")
        self.assertIn("<script>", sample)
        self.assertEqual(self.inside(), {"sample": sample, "config": "<!-- a: {} -->"})

    def test_without_a_page_of_the_coordinator_the_figures_are_named(self):
        fake_run.write_fake_run(self.out)
        (self.out / "coordinator" / "report.html").unlink()
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            report.tell(self.out)
        self.assertIn("Note: coordinator/report.html is missing", said.getvalue())
        self.assertTrue(said.getvalue().endswith(f"Report: {self.out / 'report.json'}\n"))

    def test_failed_hash_checks_stand_in_the_headline(self):
        fake_run.write_fake_run(self.out)
        path = self.out / "coordinator" / "summary.json"
        summary = json.loads(path.read_text(encoding="utf-8")) | {"hash_mismatches": 3}
        path.write_text(json.dumps(summary), encoding="utf-8")
        self.assertIn("3 hash checks failed", report.headline(report.write_report(self.out)))

    def test_run_too_short_for_a_round_has_no_bytes_per_sync(self):
        numbers = self.report_of(steps=3)
        self.assertEqual(numbers["rounds"], 0)
        self.assertEqual(numbers["bytes_per_param_per_sync"], {"up": None, "down": None})


class Reading(TemporaryFolder):
    def test_tail_gives_a_line_once_and_only_when_it_is_complete(self):
        path = self.folder / "metrics.jsonl"
        tail = progress.JsonLinesTail(path)
        self.assertEqual(tail.poll(), [])
        path.write_text('{"step":1}\n{"st', encoding="utf-8")
        self.assertEqual(tail.poll(), [{"step": 1}])
        with path.open("a", encoding="utf-8") as file:
            file.write('ep":2}\n')
        self.assertEqual(tail.poll(), [{"step": 2}])
        self.assertEqual(tail.poll(), [])

    def test_written_configurations_are_read_back(self):
        for mode in config.MODES:
            fields = config.read_fields(config.run_config_text(mode, 100, 3, 7))
            self.assertEqual(fields["train.steps"], "100")
            self.assertEqual(fields["train.seed"], "7")
            self.assertEqual(fields["membership.start_workers"], "3")
            self.assertEqual(fields["model.preset"], "tiny-1m")

    def test_numbers_are_written_for_people(self):
        self.assertEqual([units.size(n) for n in (0, 999, 1000, 999_950, 12_345_678)],
                         ["0 B", "999 B", "1 kB", "1 MB", "12.3 MB"])
        self.assertEqual([units.duration(s) for s in (0, 83.4, 3723)], ["0:00", "1:23", "1:02:03"])
        self.assertEqual([units.count(n) for n in (0.5, 12, 34_100, 1_060_000)],
                         ["0.5", "12", "34.1k", "1.06M"])


if __name__ == "__main__":
    unittest.main()
