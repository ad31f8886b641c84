"""Every benchmark runs, prints the figures that its readers look for and refuses bad flags; no time is judged.
Usage: bench_test.py FOLDER_OF_PROGRAMS [BenchTest.test_PROGRAM]"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BIN = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else None
ROOT = Path(__file__).resolve().parents[2]


class BenchTest(unittest.TestCase):
    def report(self, program, *flags):
        done = subprocess.run([BIN / program, "--json", *flags], check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    def assert_refused(self, program, *each):
        for flag in each:
            done = subprocess.run([BIN / program, flag], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2, flag)
            self.assertIn(f"{program}: ", done.stderr)

    def test_codec_bench(self):
        report = self.report("codec_bench", "--quick", "--threads=2")
        self.assertEqual([(row["codec"], row["operation"]) for row in report["rows"]],
                         [(codec, operation) for codec in ("fp32", "bf16", "int8", "e3m0", "e2m1", "int4", "lm2", "sign1")
                          for operation in ("encode", "encode_feedback", "accumulate", "apply", "validate")])
        for row in report["rows"]:
            self.assertGreater(row["all_cores_memcpy_fraction"], 0)
            self.assertAlmostEqual(row["memcpy_fraction"] * report["single_core"]["memcpy_gb_per_s"] / row["gb_per_s"], 1, 2)
        self.assert_refused("codec_bench", "--values=1000", "--repeats=0", "--threads=-1")

    def test_codec_study(self):
        report = self.report("codec_study", "--quick")
        self.assertEqual([row["codec"] for row in report["codecs"]], ["bf16", "int8", "e3m0", "e2m1", "int4", "lm2", "sign1"])
        for row in report["codecs"]:
            self.assertLessEqual(row["entropy_bits_per_value"], row["bits_per_value"] * 1.0001)
        # More bits, less error.
        self.assertLess(*({row["codec"]: row["error"] for row in report["codecs"]}[name] for name in ("int8", "int4")))

    def test_merge_bench(self):
        report = self.report("merge_bench", "--quick", "--threads=2")
        self.assertEqual([row["workers"] for row in report["rows"]], [2, 8])
        for row in report["rows"]:
            self.assertEqual(row["moved_bytes"], row["contribution_bytes"] + 2 * row["state_bytes"] + row["answer_bytes"])
        self.assertEqual([len(row["rules"]) for row in report["rows"]], [2, 5])
        self.assert_refused("merge_bench", "--values=1000", "--repeats=0", "--threads=-1")

    def test_recovery_bench(self):
        with tempfile.TemporaryDirectory() as folder:
            report = self.report("recovery_bench", "--quick", f"--folder={folder}", f"--keep={folder}/kept")
            self.assertEqual(os.listdir(folder), ["kept"])
            self.assertIn("snapshots", os.listdir(f"{folder}/kept"))
        self.assertEqual([report[name]["rounds_merged_again"] for name in ("recovery", "recovery_from_snapshots")],
                         [report["rounds"], 0])
        # Theta, published and momentum.
        self.assertGreater(report["recovery_from_snapshots"]["read_bytes"], 3 * 4 * report["parameters"])
        self.assert_refused("recovery_bench", "--rounds=0", "--fragments=0", "--folder=/nowhere/at/all")

    def test_exchange_bench(self):
        with tempfile.TemporaryDirectory() as certificates:
            for words in (["init"], ["coordinator", "--ip=127.0.0.1"], ["worker", "w0"], ["worker", "w1"]):
                subprocess.run([ROOT / "deploy" / "make_certificates", *words, f"--dir={certificates}"], check=True,
                               capture_output=True)
            for flags, rows in (([], [("plain", 1), ("plain", 4)]),
                                (["--connections=1", f"--certificates={certificates}"], [("plain", 1), ("tls", 1)])):
                report = self.report("exchange_bench", "--quick", *flags)
                self.assertEqual([(row["security"], row["connections"]) for row in report["rows"]], rows)
                self.assertGreater(min(row["push_of_tcp"] for row in report["rows"]), 0)
                self.assertGreater(min(figure for row in report["rows"] for name, both in row.items()
                                       if name.endswith("cpu_s_per_gb") for figure in both.values()), 0)
        self.assert_refused("exchange_bench", "--repeats=0", "--sizes_mib=0", "--workers=1", "--connections=17")

    def test_memory(self):
        """What is at rest is not in the coordinator's memory: it follows what is in flight."""
        found = {}
        for parameters in (4e6, 24e6):
            done = subprocess.run(
                [sys.executable, "-B", Path(__file__).with_name("memory"), f"--parameters={parameters}",
                 "--fragments=16", "--rounds=2", "--json"], capture_output=True, text=True, check=False,
                env={**os.environ, "CAUSEWAY_BIN": str(BIN)})
            self.assertEqual(done.returncode, 0, done.stderr)
            found[parameters] = json.loads(done.stdout)
            self.assertEqual(found[parameters]["rounds"], 2 * 16)
            # theta, momentum and published, at 4 bytes.
            self.assertGreaterEqual(found[parameters]["dropped_bytes"], 12 * parameters * 0.9)
        more = found[24e6]["resident_bytes"] - found[4e6]["resident_bytes"]
        # All of it would be 12 bytes of each of 20 million parameters, and answers.
        self.assertLess(more, 12 * 20e6 / 2)


if __name__ == "__main__":
    unittest.main()
