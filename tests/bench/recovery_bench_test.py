"""The benchmark of rounds and recovery runs and prints what its readers look for; no time is judged."""

import json
import subprocess
import sys
import tempfile
import unittest


class RecoveryBenchTest(unittest.TestCase):
    def test_quick_run_prints_every_key_and_leaves_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            report = json.loads(subprocess.run(
                [PROGRAM, "--quick", "--json", f"--folder={folder}"], check=True,
                capture_output=True, text=True).stdout)
            left = subprocess.run(["ls", folder], capture_output=True, text=True).stdout
        self.assertEqual(left, "")
        self.assertEqual(set(report), {
            "parameters", "fragments", "rounds", "workers", "object_bytes", "memory", "unsynced",
            "durable", "sync_s_per_round", "initial_values_s", "recovery",
            "recovery_from_snapshots"})
        self.assertEqual(report["rounds"], 24)
        self.assertEqual(report["recovery"]["rounds_merged_again"], 24)
        self.assertEqual(report["recovery_from_snapshots"]["rounds_merged_again"], 0)
        for name in ("recovery", "recovery_from_snapshots"):
            self.assertGreater(report[name]["read_bytes"], 0)
            self.assertGreater(report[name]["times_cached_read"], 0)
        # Theta, published and momentum.
        self.assertGreater(report["recovery_from_snapshots"]["read_bytes"],
                           3 * 4 * report["parameters"])

    def test_the_run_directory_can_be_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([PROGRAM, "--quick", "--rounds=1", f"--folder={folder}",
                            f"--keep={folder}/kept"], check=True, capture_output=True)
            left = subprocess.run(["ls", folder], capture_output=True, text=True).stdout
            held = subprocess.run(["ls", f"{folder}/kept"], capture_output=True, text=True).stdout
        self.assertEqual(left, "kept\n")
        self.assertIn("snapshots", held)

    def test_bad_flags_are_refused(self):
        for flag in ("--rounds=0", "--fragments=0", "--folder=/nowhere/at/all"):
            done = subprocess.run([PROGRAM, flag], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, flag)
            self.assertIn("recovery_bench: ", done.stderr)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop()
    unittest.main()
