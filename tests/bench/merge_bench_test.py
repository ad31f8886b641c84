"""The benchmark of the merge runs and prints what its readers look for; no time is judged."""

import json
import subprocess
import sys
import unittest

ROW = {"workers", "codec", "moved_bytes", "moved_bytes_per_value", "seconds", "cpu_seconds",
       "gb_per_s", "triad_fraction", "cpu_triad_fraction", "validating_seconds",
       "validating_triad_fraction", "state_bytes", "contribution_bytes", "answer_bytes",
       "beyond_bytes", "rules"}


class MergeBenchTest(unittest.TestCase):
    def test_quick_run_prints_every_key(self):
        report = json.loads(subprocess.run(
            [PROGRAM, "--quick", "--json", "--threads=2"], check=True, capture_output=True,
            text=True).stdout)
        for cores in ("single_core", "all_cores"):
            self.assertEqual(set(report[cores]), {"memcpy_gb_per_s", "triad_gb_per_s",
                                                  "triad_gb_per_cpu_s"})
        self.assertEqual([row["workers"] for row in report["rows"]], [2, 8])
        for row in report["rows"]:
            self.assertEqual(set(row), ROW)
            self.assertEqual(
                row["moved_bytes"],
                row["contribution_bytes"] + 2 * row["state_bytes"] + row["answer_bytes"])
        rules = [set(row["rules"]) for row in report["rows"]]
        self.assertEqual(rules[0], {"norm_and_direction", "clipped"})
        self.assertEqual(rules[1] - rules[0], {"trimmed_1", "trimmed_2", "clipped_trimmed_1"})

    def test_bad_flags_are_refused(self):
        for flag in ("--values=1000", "--repeats=0", "--threads=-1"):
            done = subprocess.run([PROGRAM, flag], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, flag)
            self.assertIn("merge_bench: ", done.stderr)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop()
    unittest.main()
