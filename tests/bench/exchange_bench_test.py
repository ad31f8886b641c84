"""The benchmark of the exchange runs and prints what its readers look for; no time is judged."""

import json
import subprocess
import sys
import tempfile
import unittest

ROW = {"object_bytes", "workers", "connections", "security", "tcp_gb_per_s", "tcp_cpu_s_per_gb",
       "grpc_gb_per_s", "grpc_of_tcp", "grpc_cpu_s_per_gb", "push_gb_per_s", "push_of_tcp",
       "push_of_grpc", "push_cpu_s_per_gb", "pull_gb_per_s", "pull_of_tcp", "pull_of_grpc",
       "pull_cpu_s_per_gb", "exchange_s", "exchange_gb_per_s", "exchange_cpu_s_per_gb"}


class ExchangeBenchTest(unittest.TestCase):
    def quick(self, *flags):
        report = json.loads(subprocess.run(
            [PROGRAM, "--quick", "--json", *flags], check=True, capture_output=True,
            text=True).stdout)
        self.assertEqual(set(report), {"rows", "encode", "store", "load_average", "cores"})
        folder = any(flag.startswith("--store=") for flag in flags)
        self.assertEqual(report["store"], "not synced" if folder else "none")
        self.assertEqual(set(report["encode"][0]),
                         {"object_bytes", "gb_per_s", "gb_per_s_without_checksums"})
        for row in report["rows"]:
            self.assertEqual(set(row), ROW)
            for key in ROW - {"workers", "connections", "security"}:
                if key.endswith("_cpu_s_per_gb"):
                    self.assertEqual(set(row[key]), {"here", "there"})
                else:
                    self.assertGreater(row[key], 0, key)
        return [(row["security"], row["connections"]) for row in report["rows"]]

    def test_quick_run_prints_every_key_in_memory_and_with_a_folder(self):
        self.assertEqual(self.quick(), [("plain", 1), ("plain", 4)])
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.quick("--connections=2", f"--store={folder}"), [("plain", 2)])

    def test_tls_makes_rows_of_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            for words in (["init"], ["coordinator", "--ip=127.0.0.1"], ["worker", "w0"],
                          ["worker", "w1"]):
                subprocess.run([CERTIFICATES, *words, f"--dir={folder}"], check=True,
                               capture_output=True)
            self.assertEqual(self.quick("--connections=1", f"--certificates={folder}"),
                             [("plain", 1), ("tls", 1)])

    def test_bad_flags_are_refused(self):
        for flag in ("--repeats=0", "--sizes_mib=0", "--workers=1", "--connections=17"):
            done = subprocess.run([PROGRAM, flag], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, flag)
            self.assertIn("exchange_bench: ", done.stderr)


if __name__ == "__main__":
    CERTIFICATES = sys.argv.pop()
    PROGRAM = sys.argv.pop()
    unittest.main()
