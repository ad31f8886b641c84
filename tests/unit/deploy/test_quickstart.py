"""deploy/quickstart: its options, its processes and its folder, with programs that only pretend."""

import contextlib
import io
import os
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

import fake_programs
import fake_run  # noqa: F401  (puts the package on the path)

import causeway.demo.__main__ as quickstart
from causeway.demo import corpus, processes, progress

ROOT = Path(__file__).resolve().parents[3]


def processes_of(programs: Path) -> list[str]:
    """Command lines of what runs from a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = path.read_bytes().decode("utf-8", errors="replace")
            if f"{programs}/" in command:
                found.append(command)
    return found


class QuickstartTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.out = self.folder / "out"
        self.text = self.folder / "text.txt"
        self.text.write_text("words and words\n", encoding="utf-8")
        handlers = {number: signal.getsignal(number)
                    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        for number, handler in handlers.items():
            self.addCleanup(signal.signal, number, handler)

    def quickstart(self, *options: str, **plan: str) -> tuple[int, str, str]:
        """(exit status, standard output, standard error) of the part after the build."""
        programs = Path(tempfile.mkdtemp(dir=self.folder)) / "bin"
        fake_programs.install(programs, **plan)
        said, complained = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
            status = quickstart.main([f"--programs={programs}", f"--out={self.out}", "--steps=60",
                                      f"--corpus={self.text}", *options])
        return status, said.getvalue(), complained.getvalue()


class WholeRun(QuickstartTest):
    def test_the_page_that_shows_the_run_is_named_if_there_is_one(self):
        self.assertIn("watch it at http://127.0.0.1:8/ while it trains", self.quickstart()[1])
        status, said, _ = self.quickstart(coordinator="work_without_page")
        self.assertEqual(status, 0)
        self.assertNotIn("watch it", said)

    def test_second_run_replaces_the_first_and_nothing_else(self):
        self.assertEqual(self.quickstart()[0], 0)
        (self.out / "my-notes").write_text("keep", encoding="utf-8")
        stale = self.out / "worker-7"
        stale.mkdir()
        self.assertEqual(self.quickstart()[0], 0)
        self.assertFalse(stale.exists())
        self.assertEqual((self.out / "my-notes").read_text(encoding="utf-8"), "keep")

    def test_worker_that_dies_is_named_with_its_log_and_the_others_are_stopped(self):
        status, _, complained = self.quickstart(coordinator="wait", worker_0="wait",
                                                worker_1="fail")
        self.assertEqual(status, 1)
        self.assertIn("worker-1 ended with exit status 1", complained)
        self.assertIn("worker_1 was told to fail", complained)
        for name in ("coordinator", "worker-0"):
            log = (self.out / name / "log").read_text(encoding="utf-8")
            self.assertEqual(log.count("asked to end, leaving"), log.count("waiting"), name)

    def test_what_a_process_refuses_is_a_bad_setting_and_what_fails_is_named(self):
        for index, (expected, said, plan) in enumerate((
                (2, "cannot use this", {"coordinator": "refuse"}),
                (2, "cannot use this", {"coordinator": "wait", "worker_0": "wait", "worker_1": "refuse"}),
                (2, "could not be made into shards", {"tokenize": "fail"}),
                (1, "coordinator ended with exit status 1", {"coordinator": "fail", "worker_0": "wait"}))):
            with self.subTest(plan=plan):
                status, _, complained = self.quickstart(f"--out={self.out}-{index}", **plan)
                self.assertEqual(status, expected)
                self.assertIn(said, complained)

    def start_training(self, number, disposition):
        """One whose processes wait, started with that disposition of that signal; and their folder."""
        programs = Path(tempfile.mkdtemp(dir=self.folder)) / "bin"
        fake_programs.install(programs, coordinator="wait", worker_0="wait", worker_1="wait")
        child = subprocess.Popen(
            ["/usr/bin/python3", "-B", "-m", "causeway.demo", f"--programs={programs}",
             f"--out={self.out}", f"--corpus={self.text}"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT / "worker/python",
            preexec_fn=lambda: signal.signal(number, disposition))
        for line in child.stdout:
            if "coordinator at" in line:
                break
        return child, programs

    def test_termination_stops_every_process(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number):
                # A shell's background jobs ignore Ctrl-C, and so would what they start.
                child, programs = self.start_training(number, signal.SIG_DFL)
                child.send_signal(number)
                _, complained = child.communicate()
                self.assertEqual(child.returncode, 130)
                self.assertIn("all processes have ended", complained)
                self.assertEqual(processes_of(programs), [])

    def test_a_hangup_that_nohup_ignores_stays_ignored(self):
        child, _ = self.start_training(signal.SIGHUP, signal.SIG_IGN)
        status = Path(f"/proc/{child.pid}/status").read_text(encoding="utf-8")
        ignored = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn"))
        self.assertTrue(int(ignored, 16) >> (signal.SIGHUP - 1) & 1)
        child.terminate()
        child.communicate()
        self.assertEqual(child.returncode, 130)


class Folder(QuickstartTest):
    def test_second_quickstart_in_the_same_folder_is_refused(self):
        lock = quickstart.claim_folder(self.out)
        self.addCleanup(os.close, lock)
        status, _, complained = self.quickstart()
        self.assertEqual(status, 2)
        self.assertIn("another quickstart is running", complained)


class Options(QuickstartTest):
    def test_bad_options_end_with_status_2_and_one_clear_line_before_anything_starts(self):
        (self.folder / "empty").touch()
        hollow = self.folder / "hollow"
        hollow.mkdir()
        (hollow / "nothing").touch()
        cases = [
            (["--stepz", "3"], "unknown option '--stepz'"),
            (["--steps"], "--steps needs a value"),
            (["--steps=0"], "--steps must be a whole number from 1"),
            (["--steps", "many"], "not 'many'"),
            (["--workers", "65"], "--workers must be a whole number from 1 to 64"),
            (["--seed", "-1"], "--seed must be a whole number"),
            (["--mode", "ring"], "--mode must be streaming, diloco or data-parallel"),
            (["--trainer", "jax"], "--trainer must be causeway or pytorch, not 'jax'"),
            (["--trainer=pytorch", "--mode=data-parallel"], "--trainer=pytorch sends deltas"),
            (["--corpus", "/nowhere/at/all"], "there is no '/nowhere/at/all'"),
            (["--corpus", str(self.folder / "empty")], "is empty"),
            (["--corpus", str(hollow)], "no file with text in"),
            (["--steps=15"], "--steps must be at least 16 with --mode streaming"),
            (["--steps=29", "--mode=diloco"], "--steps must be at least 30 with --mode diloco"),
            (["--out", "a,b"], "a path with a comma"),
            (["--out", str(self.text)], "is not a folder"),
            (["--out", str(self.text / "below")], f"because of '{self.text}'"),
            (["--out", str(self.folder)], "not a quickstart's result"),
        ]
        kept = sorted(os.listdir(self.folder))
        for options, expected in cases:
            with self.subTest(options=options):
                done = subprocess.run(["bash", str(ROOT / "deploy" / "quickstart"), *options],
                                      capture_output=True, text=True, check=False,
                                      stdin=subprocess.DEVNULL)
                self.assertEqual(done.returncode, 2)
                self.assertEqual(done.stdout, "")
                self.assertIn(expected, done.stderr.splitlines()[0])
                self.assertEqual(kept, sorted(os.listdir(self.folder)))

    def test_without_pytorch_one_line_says_how_to_install_it_before_anything_starts(self):
        done = subprocess.run(
            ["bash", str(ROOT / "deploy" / "quickstart"), "--trainer=pytorch"], capture_output=True,
            text=True, check=False, stdin=subprocess.DEVNULL,
            env=os.environ | {"CAUSEWAY_TORCH_PYTHON": str(self.folder / "no-python")})
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertIn("pip install 'torch>=2.4' numpy", done.stderr)

    def test_help_names_every_option(self):
        done = subprocess.run(["bash", str(ROOT / "deploy" / "quickstart"), "--help"],
                              capture_output=True, text=True, check=True)
        for option in ("--mode", "--trainer", "--steps", "--workers", "--corpus", "--seed", "--out"):
            self.assertIn(option, done.stdout)
        self.assertIn("default 500;", done.stdout)


class Build(unittest.TestCase):
    def test_a_build_that_fails_is_shown_and_named(self):
        """In a tree of its own, with a cmake that fails to build."""
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        shutil.copytree(ROOT / "deploy", folder / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "worker").symlink_to(ROOT / "worker")  # Whose options it checks first.
        (folder / "deploy" / "install_packages").write_text("#!/bin/sh\n", encoding="utf-8")
        cmake = folder / "bin" / "cmake"
        cmake.parent.mkdir()
        cmake.write_text('#!/bin/sh\n[ "$1" = --build ] || exit 0\necho an error\nexit 3\n', encoding="utf-8")
        cmake.chmod(0o755)
        done = subprocess.run([folder / "deploy" / "quickstart", f"--out={folder / 'out'}"], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=False,
                              env=os.environ | {"PATH": f"{cmake.parent}:{os.environ['PATH']}"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("an error\n", done.stdout)
        self.assertIn("the build failed (above)", done.stderr)


class DefaultCorpus(QuickstartTest):
    def test_duplicates_and_what_is_no_text_are_left_out(self):
        headers = self.folder / "include"
        (headers / "sub").mkdir(parents=True)
        (headers / "a.h").write_bytes(b"int a;\n")
        (headers / "sub" / "copy.h").write_bytes(b"int a;\n")
        (headers / "vector").write_bytes(b"// no ending\n")
        (headers / "binary.h").write_bytes(b"\x00\x01")
        (headers / "latin1.h").write_bytes(b"// \xe9t\xe9\n")
        (headers / "notes.txt").write_bytes(b"not a header\n")
        path = self.folder / "corpus.txt"
        self.assertEqual(corpus.write_default_corpus(path, (str(headers),)), (2, 22))
        self.assertEqual(sorted(path.read_bytes().split(b"\n\n")[:2]),
                         sorted(path.read_bytes().strip(b"\n").split(b"\n\n")))

    def test_limit_is_kept_and_no_headers_at_all_is_an_error(self):
        headers = self.folder / "include"
        headers.mkdir()
        for index in range(10):
            (headers / f"{index}.h").write_text(f"int value_{index};\n", encoding="utf-8")
        path = self.folder / "corpus.txt"
        files, total = corpus.write_default_corpus(path, (str(headers),), limit_bytes=50)
        self.assertEqual((files, total), (3, 42))
        self.assertEqual(path.stat().st_size, total)
        with self.assertRaisesRegex(corpus.CorpusError, "--corpus"):
            corpus.write_default_corpus(path, ("/nowhere",))


class Terminal(io.StringIO):
    def isatty(self):
        return True


class LiveProgress(QuickstartTest):
    def test_a_line_says_where_every_worker_is(self):
        fake_run.write_fake_run(self.out, steps=300)
        stream = io.StringIO()
        progress.Progress(self.out, 300, 2, stream).finish()
        line = stream.getvalue()
        for part in ("step 300 300 of 300", "27.3k tokens/s", "computing 95.0 %", "50 rounds",
                     "10.6 MB up, 18.6 MB down", "blocked 5.0 %", "at step 250", "done"):
            self.assertIn(part, line)

    def test_a_log_says_the_end_once(self):
        fake_run.write_fake_run(self.out, steps=300)
        stream = io.StringIO()
        shown = progress.Progress(self.out, 300, 2, stream, line_every_s=0)
        shown.update()
        shown.finish()
        self.assertEqual(stream.getvalue().count("done"), 1)

    def test_a_terminal_shows_one_block_that_is_painted_over(self):
        fake_run.write_fake_run(self.out, steps=300)
        stream = Terminal()
        shown = progress.Progress(self.out, 300, 2, stream)
        shown.finish()
        first = stream.getvalue()
        self.assertEqual(first.count("\n"), 4)
        shown.finish()
        self.assertTrue(stream.getvalue()[len(first):].startswith("\x1b[4A"))

    def test_a_terminal_of_80_columns_shows_whole_lines(self):
        fake_run.write_fake_run(self.out, steps=9999)
        shown = progress.Progress(self.out, 9999, 2, Terminal())
        shown.finish()
        for line in shown.block(elapsed_s=3600):
            self.assertLess(len(line), 80)

    def test_before_the_first_step_it_says_so(self):
        stream = io.StringIO()
        progress.Progress(self.out, 300, 2, stream).finish()
        self.assertIn("starting", stream.getvalue())


class Processes(QuickstartTest):
    def test_process_that_ignores_sigterm_is_killed(self):
        group = processes.ProcessGroup()
        stubborn = group.start(
            "stubborn",
            ["/usr/bin/python3", "-c", "import signal; signal.signal(signal.SIGTERM, "
             "signal.SIG_IGN); print('ready', flush=True); signal.pause()"],
            self.folder / "log")
        while not stubborn.log.read_text(encoding="utf-8"):
            self.assertIsNone(stubborn.popen.poll())
        group.stop_all(patience_s=0.1)
        self.assertEqual(stubborn.popen.returncode, -signal.SIGKILL)
        self.assertIn("was ended by SIGKILL", stubborn.describe_end())


if __name__ == "__main__":
    unittest.main()
