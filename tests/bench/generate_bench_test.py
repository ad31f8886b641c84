"""The benchmark of generation runs and prints what its readers look for; no time is judged."""

import json
import subprocess
import sys
import unittest


class GenerateBenchTest(unittest.TestCase):
    def test_quick_run_prints_every_key(self):
        report = json.loads(subprocess.run(
            [PROGRAM, "--model=tiny-1m", "--tokens=4", "--batches=1,3", "--threads=2", "--json"],
            check=True, capture_output=True, text=True).stdout)
        self.assertEqual([row["texts"] for row in report["rows"]], [1, 3])
        for key in ("weight_bytes", "read_gb_per_s", "read_limit_tokens_per_second",
                    "tokens_per_second_without_cache"):
            self.assertGreater(report[key], 0, key)
        for row in report["rows"]:
            for key in ("prompt_tokens_per_second", "tokens_per_second", "read_limit_fraction",
                        "times_without_cache"):
                self.assertGreater(row[key], 0, key)

    def test_bad_flags_are_refused(self):
        for flag in ("--model=huge", "--prompt=0", "--tokens=100000", "--batches=x"):
            done = subprocess.run([PROGRAM, flag], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, flag)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
