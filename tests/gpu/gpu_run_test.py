"""What tests/gpu/run makes of GPUs, tools and programs, with scripts in the place of all three."""

import argparse
import importlib.machinery
import importlib.util
import io
import json
import os
import sys
import tarfile
import tempfile
import time
import unittest
from contextlib import redirect_stdout
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import environment  # noqa: E402
import gpu_run  # noqa: E402
import kernel_tests  # noqa: E402
import parts  # noqa: E402
import report  # noqa: E402
import throughput  # noqa: E402
import training  # noqa: E402


def load_pack_script():
    loader = importlib.machinery.SourceFileLoader("pack_script", str(HERE / "pack"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("pack_script", loader))
    loader.exec_module(module)
    return module


BENCH = {
    "shape": {"layers": 2}, "sequence_length": 1024, "tokens_per_second": 95000.0, "mfu": 0.5,
    "seconds_per_step": 1.0, "roofline_tokens_per_second": 100000.0, "roofline_fraction": 0.95,
    "rates": {"gemm_tflops": 700.0, "copy_gb_per_s": 3000.0}, "attention": "own kernels",
    "kernels": [
        {"name": "small", "calls_per_step": 2, "milliseconds_per_step": 1.0, "gb_per_s": 2500.0,
         "limit": "copy", "limit_fraction": 0.83},
        {"name": "large", "calls_per_step": 4, "milliseconds_per_step": 90.0, "tflops": 600.0,
         "limit": "products", "limit_fraction": 0.86}]}

WORKER = """#!/bin/sh
case $1 in
  --help) echo 'causeway-worker trains one site' ;;
  tokenize) for a in "$@"; do case $a in --out=*) mkdir -p "${a#--out=}"; echo '{}' > "${a#--out=}/data.json";; esac; done ;;
  bench) %(bench)s ;;
  train) echo "no GPU can be used on this machine" >&2; exit 2 ;;
esac
"""
COORDINATOR = """#!/bin/sh
for a in "$@"; do case $a in --address_file=*) echo 127.0.0.1:1 > "${a#--address_file=}";; esac; done
exec sleep 60
"""
TESTS = """#!/bin/sh
case $1 in
  --gtest_list_tests) printf 'Suite.\\n  One\\n  Two\\n' ;;
  --gtest_output=json:*) echo '%(report)s' > "${1#--gtest_output=json:}" ;;
esac
exit %(status)d
"""


def gtest_report(failed):
    case = {"name": "One", "result": "COMPLETED"}
    if failed:
        case["failures"] = [{}]
    return json.dumps({"testsuites": [{"name": "Suite", "testsuite": [
        case, {"name": "Two", "result": "SKIPPED"}]}]})


class Machine:
    """A folder with a pack of scripts and a PATH of scripts."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.tools = self.folder / "tools"
        self.packed = self.folder / "packed"
        for place in (self.tools, self.packed / "bin", self.packed / "lib"):
            place.mkdir(parents=True)
        (self.packed / "manifest.json").write_text(json.dumps(
            {"commit": "c0ffee", "changed": False, "architectures": "90", "programs": [],
             "tests": ["kernels_gpu"], "libraries": []}))
        self.program("causeway-worker", WORKER % {
            "bench": "echo 'no GPU can be used: libcuda.so.1 was not found' >&2; exit 2"})
        self.program("causeway-coordinator", COORDINATOR)
        self.program("kernels_gpu", TESTS % {"report": gtest_report(False), "status": 0})

    def program(self, name, text):
        self._write(self.packed / "bin" / name, text)

    def tool(self, name, text):
        self._write(self.tools / name, text)

    @staticmethod
    def _write(path, text):
        path.write_text(text)
        path.chmod(0o755)

    def with_gpu(self):
        self.tool("nvidia-smi", "#!/bin/sh\necho 'NVIDIA H100, 81559 MiB, 580.1, 9.0'\n")
        self.program("causeway-worker",
                     WORKER % {"bench": f"echo 'a line before'; echo '{json.dumps(BENCH)}' | "
                                        "/usr/bin/python3 -m json.tool"})

    def run(self, *only, minutes=1.0, dry_run=False):
        archive = self.folder / "pack.tar.xz"
        with tarfile.open(archive, "w:xz") as tar:
            tar.add(self.packed, arcname=".")
        options = argparse.Namespace(pack=str(archive), out=str(self.folder / "out"),
                                     parts=list(only), skip=[], minutes=minutes, dry_run=dry_run)
        before = dict(os.environ)
        os.environ["PATH"] = f"{self.tools}:/usr/bin:/bin"
        printed = io.StringIO()
        try:
            with redirect_stdout(printed):
                status = gpu_run.run(options)
        finally:
            os.environ.clear()
            os.environ.update(before)
        results = json.loads((self.folder / "out" / "report.json").read_text())
        return status, {part["part"]: part for part in results["parts"]}, printed.getvalue()


class RunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        self.addCleanup(folder.cleanup)
        self.machine = Machine(folder.name)

    def test_without_a_gpu_every_part_says_why_it_skips(self):
        status, results, printed = self.machine.run(dry_run=True)
        self.assertEqual(list(results), list(gpu_run.PARTS))
        for name, result in results.items():
            self.assertEqual(result["status"], "SKIP", result)
            self.assertIn("no nvidia-smi", result["reason"], name)
        self.assertIn("2 tests in 1 programs load", results["unit"]["reason"])
        self.assertIn("libcuda.so.1 was not found", results["bench"]["reason"])
        self.assertIn("no GPU can be used on this machine", results["end_to_end"]["reason"])
        self.assertEqual(status, 0)
        self.assertIn("0 passed, 0 failed, 7 skipped", printed)

    def test_without_a_gpu_a_real_run_has_not_passed(self):
        self.assertEqual(self.machine.run("unit")[0], 1)

    def test_a_gpu_that_nobody_answers_for_is_told_as_such(self):
        self.machine.tool("nvidia-smi", "#!/bin/sh\necho 'No devices were found'; exit 6\n")
        _, results, _ = self.machine.run("environment")
        self.assertIn("No devices were found", results["environment"]["reason"])

    def test_a_part_that_fails_does_not_stop_the_others(self):
        self.machine.with_gpu()
        self.machine.program("kernels_gpu", TESTS % {"report": gtest_report(True), "status": 1})
        status, results, _ = self.machine.run("unit", "bench")
        self.assertEqual(results["environment"]["status"], "PASS")
        self.assertEqual(results["unit"]["status"], "FAIL")
        self.assertIn("kernels_gpu: Suite.One", results["unit"]["reason"])
        self.assertEqual(results["bench"]["status"], "PASS", results["bench"])
        self.assertEqual(status, 1)

    def test_a_part_that_breaks_does_not_stop_the_others(self):
        self.machine.with_gpu()
        (self.machine.packed / "bin" / "kernels_gpu").write_text("not a program")
        _, results, _ = self.machine.run("unit", "bench")
        self.assertEqual(results["unit"]["status"], "FAIL")
        self.assertEqual(results["bench"]["status"], "PASS")

    def test_throughput_below_the_roofline_fails_and_is_reported_all_the_same(self):
        self.machine.with_gpu()
        slow = {**BENCH, "roofline_fraction": 0.7}
        self.machine.program("causeway-worker", WORKER % {"bench": f"echo '{json.dumps(slow)}'"})
        status, results, _ = self.machine.run("bench")
        self.assertEqual((status, results["bench"]["status"]), (1, "FAIL"))
        self.assertIn("70 %", results["bench"]["reason"])
        self.assertIn("| large | 4 | 90.00 | 9.0 % | 600 |  | products | 86 % |",
                      (self.machine.folder / "out" / "report.md").read_text())

    def test_findings_of_the_sanitizer_fail_and_what_did_not_end_is_said(self):
        self.machine.with_gpu()
        clean = "#!/bin/sh\necho '========= ERROR SUMMARY: 0 errors'\n"
        self.machine.tool("compute-sanitizer", clean)
        _, results, _ = self.machine.run("sanitizer")
        self.assertEqual(results["sanitizer"]["status"], "PASS", results["sanitizer"])
        self.assertIn("2 of 2 runs without a finding", results["sanitizer"]["reason"])
        self.machine.tool("compute-sanitizer", """#!/bin/sh
case "$*" in *racecheck*) echo '========= RACECHECK SUMMARY: 3 hazards displayed' ;;
*) echo cut ;; esac""")
        _, results, _ = self.machine.run("sanitizer")
        self.assertEqual(results["sanitizer"]["status"], "FAIL")
        self.assertIn("racecheck of kernels_gpu: 3 findings", results["sanitizer"]["reason"])

    def test_when_time_is_over_the_rest_is_skipped(self):
        self.machine.with_gpu()
        _, results, _ = self.machine.run("unit", minutes=0)
        self.assertEqual(results["unit"]["status"], "SKIP")
        self.assertIn("--minutes", results["unit"]["reason"])

    def test_a_command_past_its_limit_is_stopped_with_its_children(self):
        self.machine.with_gpu()
        log = []
        context = parts.Context(HERE, self.machine.packed, self.machine.folder,
                                time.monotonic() + 60, log=lambda *entry: log.append(entry))
        done = context.run("x", "sh", "-c", "echo begun; sleep 50 & wait", timeout_s=1)
        self.assertTrue(done.timed_out)
        self.assertLess(done.seconds, 20)
        self.assertIn("begun", done.output)
        self.assertIn("stopped after 1 s", log[0][1])

    def test_a_part_that_does_not_exist_is_refused_with_those_that_do(self):
        with self.assertRaisesRegex(SystemExit, "no part 'benhc'.*bench"):
            gpu_run.chosen_parts(["benhc"], [])
        self.assertEqual(gpu_run.chosen_parts(["unit"], []), ["environment", "unit"])


class PiecesTest(unittest.TestCase):
    def test_libraries_of_the_machine_stay_there(self):
        script = load_pack_script()
        found = script.libraries("""
        linux-vdso.so.1 (0x00007ffd)
        libgrpc++.so.1.51 => /lib/x86_64-linux-gnu/libgrpc++.so.1.51 (0x00007f)
        libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)
        libstdc++.so.6 => /lib/x86_64-linux-gnu/libstdc++.so.6 (0x00007f)
        libcrypto.so.3 => /lib/x86_64-linux-gnu/libcrypto.so.3 (0x00007f)
        libcares.so.2 => /lib/x86_64-linux-gnu/libcares.so.2 (0x00007f)
        /lib64/ld-linux-x86-64.so.2 (0x00007f)""")
        self.assertEqual(sorted(found), ["libcares.so.2", "libcrypto.so.3", "libgrpc++.so.1.51"])
        with self.assertRaisesRegex(script.PackError, "libfoo.so.1"):
            script.libraries("\tlibfoo.so.1 => not found\n")

    def test_run_time_libraries_are_found_in_python_packages(self):
        with tempfile.TemporaryDirectory() as folder:
            lib = Path(folder) / "nvidia/cu13/lib"
            lib.mkdir(parents=True)
            (lib / "libcublasLt.so.13").touch()
            self.assertEqual(environment.find_libraries([Path(folder), lib]),
                             {"libcublasLt.so.13": str(lib)})

    def test_step_times_are_those_between_steps(self):
        lines = [{"kind": "start", "unix_s": 0}] + [
            {"kind": "step", "unix_s": value} for value in (1.0, 5.0, 6.0, 7.5)]
        self.assertEqual(training.step_seconds(lines, 1), [1.0, 1.5])

    def test_the_last_object_of_an_output_is_read(self):
        self.assertEqual(throughput.last_object('warning {\n{\n "a": {"b": 1}\n}\n'), {"a": {"b": 1}})
        self.assertEqual(throughput.last_object('{"a": 2}'), {"a": 2})

    def test_findings_are_counted(self):
        self.assertEqual(kernel_tests.findings("ERROR SUMMARY: 2 errors"), 2)
        self.assertIsNone(kernel_tests.findings("stopped"))

    def test_the_report_compares_with_torch(self):
        table = report.throughput_table({"m": BENCH}, {"m": {"tokens_per_second": 5e4,
                                                             "ratio": 1.9}})
        self.assertIn("| m | 1024 | 95,000 | 50 % | 100,000 | 95 % | 50,000 | 1.90 |", table)


if __name__ == "__main__":
    unittest.main()
