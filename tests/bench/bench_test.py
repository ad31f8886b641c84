"""Every benchmark runs, prints what its readers look for and refuses bad flags; no time is judged.
Usage: bench_test.py FOLDER_OF_PROGRAMS [CLASS]"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BIN = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else None
ROOT = Path(__file__).resolve().parents[2]
RATES = {"memcpy_gb_per_s", "triad_gb_per_s", "triad_gb_per_cpu_s"}


class Benchmark(unittest.TestCase):
    program = None

    def report(self, *flags):
        done = subprocess.run([BIN / self.program, "--json", *flags], check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    def assert_refused(self, *each):
        for flag in each:
            done = subprocess.run([BIN / self.program, flag], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2, flag)
            self.assertIn(f"{self.program}: ", done.stderr)

    def assert_keys(self, rows, keys):
        for row in rows:
            self.assertEqual(set(row), set(keys.split()))


class CodecBench(Benchmark):
    program = "codec_bench"

    def test_a_row_for_every_codec_and_operation(self):
        report = self.report("--quick", "--threads=2")
        self.assertEqual([set(report[cores]) for cores in ("single_core", "all_cores")], [RATES] * 2)
        self.assertEqual([(row["codec"], row["operation"]) for row in report["rows"]],
                         [(codec, operation) for codec in ("fp32", "bf16", "int8", "e3m0", "e2m1", "int4", "lm2", "sign1")
                          for operation in ("encode", "encode_feedback", "accumulate", "apply", "validate")])
        self.assert_keys(report["rows"], "codec operation bytes_per_value gb_per_s memcpy_fraction "
                         "all_cores_gb_per_s all_cores_memcpy_fraction")
        self.assertTrue(all(row["gb_per_s"] > 0 for row in report["rows"]))
        self.assert_refused("--values=1000", "--repeats=0", "--threads=-1")


class CodecStudy(Benchmark):
    program = "codec_study"

    def test_figures_are_in_their_natural_order(self):
        report = self.report("--quick")
        sets = ["gaussian", "student-t3"]
        self.assertEqual([(row["data"], row["codec"]) for row in report["codecs"]],
                         [(data, codec) for data in sets
                          for codec in ("bf16", "int8", "e3m0", "e2m1", "int4", "lm2", "sign1")])
        self.assertEqual(
            [(row["data"], row["format"], row["block"], row["scale"]) for row in report["blocks"]],
            [(data, form, block, scale) for data in sets for form in ("int4", "e2m1", "e3m0", "lm2")
             for block in (16, 32, 64, 128, 256) for scale in ("fp32", "bf16", "e8m0", "e4m3")])
        errors = {(row["format"], row["block"], row["scale"]): row["error"]
                  for row in report["blocks"] if row["data"] == "gaussian"}
        self.assertLess(errors["int4", 16, "fp32"], errors["int4", 256, "fp32"])
        # The codec does what is computed here.
        for row in report["codecs"]:
            if row["data"] == "gaussian" and (row["codec"], 64, "bf16") in errors:
                self.assertAlmostEqual(row["error"] / errors[row["codec"], 64, "bf16"], 1, 3)
            self.assertTrue(0 <= row["lossless_saves"] < 1)
            self.assertGreater(row["packs_bytes_per_s"], 0)
            self.assertLessEqual(row["entropy_bits_per_value"], row["bits_per_value"] * 1.0001)


class MergeBench(Benchmark):
    program = "merge_bench"

    def test_moved_bytes_are_the_sum_of_what_moves(self):
        report = self.report("--quick", "--threads=2")
        self.assertEqual([set(report[cores]) for cores in ("single_core", "all_cores")], [RATES] * 2)
        self.assertEqual([row["workers"] for row in report["rows"]], [2, 8])
        self.assert_keys(report["rows"], "workers codec moved_bytes moved_bytes_per_value seconds cpu_seconds gb_per_s "
                         "triad_fraction cpu_triad_fraction validating_seconds validating_triad_fraction state_bytes "
                         "contribution_bytes answer_bytes beyond_bytes rules")
        for row in report["rows"]:
            self.assertEqual(row["moved_bytes"],
                             row["contribution_bytes"] + 2 * row["state_bytes"] + row["answer_bytes"])
        rules = [set(row["rules"]) for row in report["rows"]]
        self.assertEqual(rules[0], {"norm_and_direction", "clipped"})
        self.assertEqual(rules[1] - rules[0], {"trimmed_1", "trimmed_2", "clipped_trimmed_1"})
        self.assert_refused("--values=1000", "--repeats=0", "--threads=-1")


class StoreBench(Benchmark):
    program = "store_bench"

    def test_every_part_is_measured_and_nothing_left(self):
        with tempfile.TemporaryDirectory() as folder:
            report = self.report("--quick", f"--folder={folder}")
            self.assertEqual(os.listdir(folder), [])
        self.assertEqual([row["object_bytes"] for row in report["contributions"]], [4 << 20, 8 << 20])
        self.assert_keys(report["contributions"], "object_bytes durable_s durable_per_s durable_mb_per_s unsynced_s "
                         "unsynced_per_s unsynced_mb_per_s plain_s plain_mb_per_s durable_of_plain")
        self.assert_keys([report["commits"]], "commit_s commits_per_s plain_sync_s commits_of_plain")
        self.assert_keys([report["snapshot"]], "bytes snapshot_s gb_per_s plain_s plain_gb_per_s snapshot_of_plain")
        self.assert_keys([report["recovery"]], "rounds database_bytes recover_s")
        self.assert_refused("--repeats=0", "--rounds=0", "--folder=/nowhere/at/all")


class RecoveryBench(Benchmark):
    program = "recovery_bench"

    def test_rounds_are_merged_again_only_without_snapshots(self):
        with tempfile.TemporaryDirectory() as folder:
            report = self.report("--quick", f"--folder={folder}", f"--keep={folder}/kept")
            self.assertEqual(os.listdir(folder), ["kept"])
            self.assertIn("snapshots", os.listdir(f"{folder}/kept"))
        self.assert_keys([report], "parameters fragments rounds workers object_bytes memory unsynced durable "
                         "sync_s_per_round initial_values_s recovery recovery_from_snapshots")
        self.assertEqual([report[name]["rounds_merged_again"] for name in ("recovery", "recovery_from_snapshots")],
                         [24, 0])
        self.assertEqual(report["rounds"], 24)
        for name in ("recovery", "recovery_from_snapshots"):
            self.assertGreater(report[name]["read_bytes"], 0)
            self.assertGreater(report[name]["times_cached_read"], 0)
        # Theta, published and momentum.
        self.assertGreater(report["recovery_from_snapshots"]["read_bytes"], 3 * 4 * report["parameters"])
        self.assert_refused("--rounds=0", "--fragments=0", "--folder=/nowhere/at/all")


class ExchangeBench(Benchmark):
    program = "exchange_bench"

    def quick(self, *flags):
        report = self.report("--quick", *flags)
        self.assert_keys([report], "rows encode store load_average cores")
        folder = any(flag.startswith("--store=") for flag in flags)
        self.assertEqual(report["store"], "not synced" if folder else "none")
        self.assert_keys(report["encode"], "object_bytes gb_per_s gb_per_s_without_checksums")
        ways = ("tcp", "grpc", "push", "pull", "exchange")
        rates = {f"{way}_gb_per_s" for way in ways} | {"object_bytes", "exchange_s", "grpc_of_tcp", "push_of_tcp",
                                                       "pull_of_tcp", "push_of_grpc", "pull_of_grpc"}
        cpu = {f"{way}_cpu_s_per_gb" for way in ways}
        for row in report["rows"]:
            self.assertEqual(set(row), rates | cpu | {"workers", "connections", "security"})
            self.assertTrue(all(row[key] > 0 for key in rates), row)
            self.assert_keys([row[key] for key in cpu], "here there")
        return [(row["security"], row["connections"]) for row in report["rows"]]

    def test_rows_in_memory_with_a_folder_and_with_tls(self):
        self.assertEqual(self.quick(), [("plain", 1), ("plain", 4)])
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.quick("--connections=2", f"--store={folder}"), [("plain", 2)])
        with tempfile.TemporaryDirectory() as folder:
            for words in (["init"], ["coordinator", "--ip=127.0.0.1"], ["worker", "w0"], ["worker", "w1"]):
                subprocess.run([ROOT / "deploy" / "make_certificates", *words, f"--dir={folder}"], check=True,
                               capture_output=True)
            self.assertEqual(self.quick("--connections=1", f"--certificates={folder}"), [("plain", 1), ("tls", 1)])
        self.assert_refused("--repeats=0", "--sizes_mib=0", "--workers=1", "--connections=17")


class GenerateBench(Benchmark):
    program = "generate_bench"

    def test_rates_of_several_texts(self):
        report = self.report("--model=tiny-1m", "--tokens=4", "--batches=1,3", "--threads=2")
        self.assertEqual([row["texts"] for row in report["rows"]], [1, 3])
        for key in ("weight_bytes", "read_gb_per_s", "read_limit_tokens_per_second",
                    "tokens_per_second_without_cache"):
            self.assertGreater(report[key], 0, key)
        for row in report["rows"]:
            for key in ("prompt_tokens_per_second", "tokens_per_second", "read_limit_fraction", "times_without_cache"):
                self.assertGreater(row[key], 0, key)
        self.assert_refused("--model=huge", "--prompt=0", "--tokens=100000", "--batches=x")


class Memory(unittest.TestCase):
    """A short run of tests/bench/memory: what is at rest is not in the coordinator's memory."""

    def test_memory_follows_what_is_in_flight(self):
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
