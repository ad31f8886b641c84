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
            "durable", "sync_s_per_round", "recovery"})
        self.assertEqual(report["rounds"], 24)
        self.assertEqual(report["recovery"]["rounds_merged_again"], 24)

    def test_bad_flags_are_refused(self):
        for flag in ("--rounds=0", "--fragments=0", "--folder=/nowhere/at/all"):
            done = subprocess.run([PROGRAM, flag], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, flag)
            self.assertIn("recovery_bench: ", done.stderr)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop()
    unittest.main()
