"""The benchmark of the store runs and prints what its readers look for; no time is judged."""

import json
import subprocess
import sys
import tempfile
import unittest

CONTRIBUTION = {"object_bytes", "durable_s", "durable_per_s", "durable_mb_per_s", "unsynced_s",
                "unsynced_per_s", "unsynced_mb_per_s", "plain_s", "plain_mb_per_s",
                "durable_of_plain"}


class StoreBenchTest(unittest.TestCase):
    def test_quick_run_prints_every_key_and_leaves_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            report = json.loads(subprocess.run(
                [PROGRAM, "--quick", "--json", f"--folder={folder}"], check=True,
                capture_output=True, text=True).stdout)
            left = subprocess.run(["ls", folder], capture_output=True, text=True).stdout
        self.assertEqual(left, "")
        self.assertEqual([row["object_bytes"] for row in report["contributions"]],
                         [4 << 20, 8 << 20])
        for row in report["contributions"]:
            self.assertEqual(set(row), CONTRIBUTION)
        self.assertEqual(set(report["commits"]),
                         {"commit_s", "commits_per_s", "plain_sync_s", "commits_of_plain"})
        self.assertEqual(set(report["snapshot"]), {"bytes", "snapshot_s", "gb_per_s", "plain_s",
                                                   "plain_gb_per_s", "snapshot_of_plain"})
        self.assertEqual(set(report["recovery"]), {"rounds", "database_bytes", "recover_s"})

    def test_bad_flags_are_refused(self):
        for flag in ("--repeats=0", "--rounds=0", "--folder=/nowhere/at/all"):
            done = subprocess.run([PROGRAM, flag], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, flag)
            self.assertIn("store_bench: ", done.stderr)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop()
    unittest.main()
