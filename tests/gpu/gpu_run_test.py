"""What tests/gpu/run makes of GPUs, tools and programs, with scripts in the place of all three."""

import argparse
import io
import json
import os
import sys
import tarfile
import tempfile
import unittest
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import environment  # noqa: E402
import gpu_run  # noqa: E402
import kernel_tests  # noqa: E402
import quality  # noqa: E402
import training  # noqa: E402

BENCH = {
    "shape": {"layers": 2}, "sequence_length": 1024, "tokens_per_second": 95000.0, "mfu": 0.5,
    "seconds_per_step": 1.0, "roofline_tokens_per_second": 100000.0, "roofline_fraction": 0.95,
    "kernels_fraction": 0.91, "attention": "own kernels",
    "rates": {"gemm_tflops": 700.0, "copy_gb_per_s": 3000.0},
    "rates_spread": {"gemm_tflops": 0.021, "copy_gb_per_s": 0.001},
    "kernels": [
        {"name": "small", "calls_per_step": 2, "milliseconds_per_step": 1.0, "gb_per_s": 2500.0,
         "limit": "copy", "limit_fraction": 0.83, "traced_milliseconds": 1.5},
        {"name": "large", "calls_per_step": 4, "milliseconds_per_step": 90.0, "tflops": 600.0,
         "limit": "products", "limit_fraction": 0.86, "traced_milliseconds": 92.0}],
    "trace": {"seconds": 1.1, "gap_seconds": 0.005, "gaps": [
        {"after": "small", "before": "large", "count": 2, "milliseconds": 4.5}]}}


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
        self.passing_tests("kernels_gpu")

    def passing_tests(self, name):
        self.program(name, TESTS % {"report": gtest_report(False), "status": 0})

    def set_tests(self, names):
        manifest = json.loads((self.packed / "manifest.json").read_text())
        (self.packed / "manifest.json").write_text(json.dumps({**manifest, "tests": names}))

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

    def run(self, *only, minutes=1.0, dry_run=False, study=None):
        archive = self.folder / "pack.tar.xz"
        with tarfile.open(archive, "w:xz") as tar:
            tar.add(self.packed, arcname=".")
        options = argparse.Namespace(pack=str(archive), out=str(self.folder / "out"), parts=list(only),
                                     minutes=minutes, dry_run=dry_run, compare=None, study=study, set=[], json=False)
        printed = io.StringIO()
        with mock.patch.dict(os.environ, {"PATH": f"{self.tools}:/usr/bin:/bin"}), \
                mock.patch.object(environment, "TOOL_FOLDERS", ()), \
                redirect_stdout(printed):
            status = gpu_run.run(options)
        results = json.loads((self.folder / "out" / "report.json").read_text())
        return status, {part["part"]: part for part in results["parts"]}, printed.getvalue()


class RunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        self.addCleanup(folder.cleanup)
        self.machine = Machine(folder.name)

    def test_without_a_gpu_every_part_says_why_it_skips(self):
        status, results, printed = self.machine.run(dry_run=True)
        self.assertEqual(list(results), gpu_run.chosen_parts([]))
        self.assertNotIn("quality", results)
        for name, result in results.items():
            self.assertEqual(result["status"], "SKIP", result)
            self.assertIn("no nvidia-smi", result["reason"], name)
        self.assertIn("2 tests in 1 programs load", results["unit"]["reason"])
        self.assertIn("libcuda.so.1 was not found", results["bench"]["reason"])
        self.assertIn("no GPU can be used on this machine", results["end_to_end"]["reason"])
        self.assertEqual(status, 0)
        self.assertIn("0 passed, 0 failed, 8 skipped", printed)

    def test_without_a_gpu_a_real_run_has_not_passed(self):
        status, _, printed = self.machine.run("unit")
        self.assertEqual(status, 1)
        self.assertIn("nothing was checked on a GPU: there is no nvidia-smi", printed)

    def test_a_part_that_fails_does_not_stop_the_others(self):
        self.machine.with_gpu()
        self.machine.program("kernels_gpu", TESTS % {"report": gtest_report(True), "status": 1})
        status, results, _ = self.machine.run("unit", "bench")
        self.assertEqual(results["environment"]["status"], "PASS")
        self.assertEqual(results["unit"]["status"], "FAIL")
        self.assertIn("kernels_gpu: Suite.One", results["unit"]["reason"])
        self.assertEqual(results["bench"]["status"], "PASS", results["bench"])
        self.assertEqual(status, 1)

    def test_tests_that_hang_are_named_and_hold_up_no_others(self):
        self.machine.with_gpu()
        hanging = [f"hanging_{letter}_gpu" for letter in "abcde"]
        for name in hanging:
            self.machine.program(name, "#!/bin/sh\necho '[ RUN      ] Suite.Waits'\nexec sleep 60\n")
        self.machine.set_tests([*hanging, "kernels_gpu"])
        with mock.patch.object(kernel_tests, "_TEST_S", 1):
            _, results, _ = self.machine.run("unit", "bench")
        self.assertEqual(results["unit"]["status"], "FAIL")
        self.assertIn("hanging_e_gpu: not done after 1 s, in Suite.Waits",
                      results["unit"]["reason"])
        self.assertTrue(results["unit"]["data"]["programs"]["kernels_gpu"]["passed"])
        self.assertEqual(results["bench"]["status"], "PASS")

    def test_throughput_below_the_roofline_fails_and_is_reported_all_the_same(self):
        self.machine.with_gpu()
        slow = {**BENCH, "roofline_fraction": 0.7}
        self.machine.program("causeway-worker", WORKER % {"bench": f"echo '{json.dumps(slow)}'"})
        status, results, _ = self.machine.run("bench")
        self.assertEqual((status, results["bench"]["status"]), (1, "FAIL"))
        self.assertIn("70 % of the roofline (its rates 2.1 % apart before and after)",
                      results["bench"]["reason"])
        report = (self.machine.folder / "out" / "report.md").read_text()
        self.assertIn("| large | 4 | 90.00 | 9.0 % | 600 |  | products | 86 % | 1.3 % | 92.00 |", report)
        self.assertIn("| small | large | 2 | 4.500 |", report)

    def test_findings_of_the_sanitizer_fail_and_what_did_not_end_is_said(self):
        self.machine.with_gpu()
        clean = "#!/bin/sh\necho '========= ERROR SUMMARY: 0 errors'\n"
        self.machine.tool("compute-sanitizer", clean)
        _, results, printed = self.machine.run("sanitizer")
        self.assertEqual(results["sanitizer"]["status"], "PASS", results["sanitizer"])
        self.assertIn("2 of 2 runs without a finding", results["sanitizer"]["reason"])
        self.assertIn("racecheck of kernels_gpu: 0 findings", printed)
        log = (self.machine.folder / "out" / "logs.txt").read_text()
        self.assertIn("--tool racecheck --kernel-name kns=causeway --report", log)
        self.assertIn("--tool memcheck --report", log)
        self.machine.tool("compute-sanitizer", """#!/bin/sh
case "$*" in *racecheck*) echo '========= RACECHECK SUMMARY: 3 hazards displayed' ;;
*) echo cut ;; esac""")
        _, results, _ = self.machine.run("sanitizer")
        self.assertEqual(results["sanitizer"]["status"], "FAIL")
        self.assertIn("racecheck of kernels_gpu: 3 findings", results["sanitizer"]["reason"])


STUDY = {
    "model": {"layers": 1, "width": 16, "heads": 2, "mlp_width": 32, "sequence_length": 16},
    "steps": 12, "windows": 4, "seeds": [1, 2], "baseline": "plain", "device": "cpu",
    "settings": {"train.evaluation_sequences": 8, "sync.steps_between_syncs": 4,
                 "sync.overlap_steps": 1, "sync.mixing": 0},
    "variants": {"plain": {"workers": 1, "settings": {"sync.overlap_steps": 0}},
                 "M2": {"workers": 2, "settings": {"sync.codec_up": "INT4"}}}}


class QualityTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def study(self, **changes):
        path = self.folder / "study.json"
        path.write_text(json.dumps({**STUDY, **changes}))
        return path

    def test_what_is_no_study_is_refused_by_name(self):
        for changes, message in (({"steps": "many"}, "steps must be of type int"),
                                 ({"widnows": 3}, "there is no 'widnows'"),
                                 ({"seeds": [-1]}, "seeds must be whole numbers"),
                                 ({"baseline": "other"}, "'other' is none of the variants"),
                                 ({"windows": 3}, "must be a multiple of the workers of M2, 2"),
                                 ({"variants": {"plain": {}}}, "plain must have workers")):
            with self.assertRaisesRegex(quality.StudyError, message):
                quality.read_study(self.study(**changes))
        with self.assertRaisesRegex(quality.StudyError, "is no study"):
            quality.read_study(self.folder / "absent.json")

    @unittest.skipUnless("CAUSEWAY_BIN" in os.environ, "run by ctest, which names the programs")
    def test_a_study_is_rehearsed_on_cpus_with_the_programs_themselves(self):
        machine = Machine(self.folder / "machine")
        text = self.folder / "text"
        text.mkdir()
        (text / "module.py").write_text("def double(value):\n    return 2 * value\n" * 400)
        for name in ("causeway-worker", "causeway-coordinator"):
            program = machine.packed / "bin" / name
            program.unlink()
            program.symlink_to(Path(os.environ["CAUSEWAY_BIN"]) / name)
        _, results, printed = machine.run("quality", minutes=5, study=self.study(data=str(text)))
        part = results["quality"]
        self.assertEqual(part["status"], "PASS", part)
        rows = part["data"]["runs"]
        self.assertEqual([(row["variant"], row["seed"]) for row in rows],
                         [("plain", 1), ("M2", 1), ("plain", 2), ("M2", 2)])
        for row in rows:
            self.assertEqual(row["hash_mismatches"], 0)
            self.assertGreater(row["hash_checks"], 0)
        first, second = rows[:2]
        self.assertEqual(first["gap"], None)
        self.assertAlmostEqual(second["gap"], second["loss"] - first["loss"])
        self.assertLess(second["bytes_up_per_parameter_and_step"],
                        first["bytes_up_per_parameter_and_step"] / 4)
        self.assertEqual(part["data"]["gaps"]["M2"]["seeds"], 2)
        self.assertIn("M2, seed 2: loss ", printed)


class PiecesTest(unittest.TestCase):
    def test_steps_are_timed_in_whole_cycles(self):
        lines = [{"kind": "start", "unix_s": 0}] + [
            {"kind": "step", "unix_s": value} for value in (1.0, 5.0, 6.0, 7.5, 8.5, 9.0, 9.5, 20)]
        # Without the first step and the last one: from 5 to 7.5 and from 7.5 to 9.
        self.assertEqual(training.cycle_seconds(lines, 1, 2), [1.25, 0.75])


if __name__ == "__main__":
    unittest.main()
