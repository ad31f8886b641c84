"""--help of what people run: it is printed without building, installing, or any package of Python's."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = sorted([*ROOT.glob("tests/*/run"), ROOT / "tests/run", ROOT / "deploy/quickstart", ROOT / "tests/python/cost",
                  ROOT / "tests/security/hostile"])
PROGRAMS = sorted([*ROOT.glob("tests/experiments/*.py"), *ROOT.glob("tests/scale/*.py"), ROOT / "tests/wan/wan_run.py",
                   ROOT / "tests/peers/peers_run.py", ROOT / "tests/faults/kill_runs.py"])
# What such a script may take for its help. Neither cmake nor apt-get, pip or dpkg are there.
ALLOWED = ("bash", "env", "dirname", "sed", "cat")


class HelpTest(unittest.TestCase):
    def helps(self, *command, **environment):
        done = subprocess.run([*map(str, command), "--help"], capture_output=True, text=True, timeout=60, check=False,
                              stdin=subprocess.DEVNULL, env=environment | {"HOME": "/nonexistent"})
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        self.assertRegex(done.stdout, "usage:|tests/scale/run --")

    def test_scripts(self):
        self.assertGreater(len(SCRIPTS), 10)
        with tempfile.TemporaryDirectory(prefix="causeway_help_") as folder:
            for name in ALLOWED:
                (pathlib.Path(folder) / name).symlink_to(shutil.which(name))
            (pathlib.Path(folder) / "python3").symlink_to(sys.executable)
            for script in SCRIPTS:
                with self.subTest(script.relative_to(ROOT)):
                    self.helps(script, PATH=folder)

    def test_programs_without_packages(self):
        run = "import runpy, sys; sys.modules.update(numpy=None, matplotlib=None, torch=None); " \
              "sys.path.insert(0, sys.argv[1].rpartition('/')[0]); sys.argv[:] = sys.argv[1:]; " \
              "runpy.run_path(sys.argv[0], run_name='__main__')"
        tried = 0
        for program in PROGRAMS:
            text = program.read_text()
            if "ArgumentParser(" not in text or "__main__" not in text or program.name.endswith("_test.py"):
                continue
            tried += 1
            with self.subTest(program.relative_to(ROOT)):
                self.helps(sys.executable, "-B", "-c", run, program, PATH=os.environ["PATH"])
        self.assertGreater(tried, 8)


if __name__ == "__main__":
    unittest.main()
