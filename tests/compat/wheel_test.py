#!/usr/bin/env python3
"""The wheel: what is in it, and that all of it works in an empty virtual environment."""

import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "deploy" / "package"))

import wheel_builder  # noqa: E402

places = types.SimpleNamespace(**runpy.run_path(str(HERE / "wheel")))

BUILD = pathlib.Path(os.environ["CAUSEWAY_BIN"]).parent
SITE_MAPS = """
import causeway._library
causeway._library.load()
print(open("/proc/self/maps").read())
"""


class WheelTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="causeway_wheel_"))
        self.addCleanup(shutil.rmtree, self.folder)

    def test_an_empty_environment_gets_programs_site_and_demo(self):
        if shutil.which("patchelf") is None:
            self.skipTest("patchelf is missing: deploy/install_packages packages_pack")
        wheel = self.folder / wheel_builder.write_wheel(self.folder, BUILD, bundled=True)
        places.describe(wheel)
        text = self.folder / "text.txt"
        text.write_text("".join(f"line {i * i} of a text\n" for i in range(20000)))
        # Nothing from PyPI, and Debian's numpy.
        found = places.try_environment(
            wheel, self.folder, ["--steps=30", f"--corpus={text}", "--sample_tokens=5"],
            ["--no-index", "--no-deps"], site_packages=True)
        self.assertLess(found["eval_loss"], found["initial_loss"] - 1)
        place = self.folder / "venv-own/venv"
        site = next(place.glob("lib/python3*/site-packages/causeway"))
        mapped = places.run("env", "-uPYTHONPATH", "-uCAUSEWAY_SITE_LIBRARY", place / "bin/python", "-c",
                            SITE_MAPS)
        loaded = {"site": re.findall(r"(/\S+\.so\S*)$", mapped, re.M)}
        for program in places.PROGRAMS[:3]:
            loaded[program] = re.findall(r"=> (/\S+)", places.run("ldd", site / "bin" / program))
        for who, libraries in loaded.items():
            for name in ("libgrpc", "libprotobuf", "libabsl_base", "libssl"):
                # The wheel's own, and none of this machine.
                self.assertTrue(any(path.startswith(f"{site}/") and f"-{name}." in path
                                    for path in libraries), (who, name))
                self.assertFalse(any(pathlib.Path(path).name.startswith(f"{name}.")
                                     for path in libraries), (who, name))
        self.assertIn("worker ID", places.run(place / "bin/causeway-make-certificates", "--help"))
        done = subprocess.run([place / "bin/causeway", "dem"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("there is no command 'dem'; there are demo, ", done.stderr)

    def test_the_wheel_is_whole(self):
        name = wheel_builder.write_wheel(self.folder, BUILD)
        with zipfile.ZipFile(self.folder / name) as wheel:
            names = wheel.namelist()
            record = wheel.read(next(n for n in names if n.endswith("RECORD"))).decode()
        self.assertEqual(sorted(names), sorted(line.split(",")[0] for line in record.split()))
        for needed in ("causeway/py.typed", "causeway/causeway_site.h", "causeway/torch/__init__.py", "causeway/demo/__main__.py",
                       "causeway/fleet/skypilot/site.yaml", "causeway/libcauseway_site.so", "causeway/bin/causewayctl",
                       "causeway/bin/causeway-make-certificates"):
            self.assertIn(needed, names)

    def test_the_same_files_make_the_same_bytes(self):
        wheels = []
        for begin in (1_600_000_000, 1_700_000_000):
            tree = self.folder / str(begin)
            (tree / "bin").mkdir(parents=True)
            for name in ("b.py", "bin/a"):
                (tree / name).write_text(name)
                os.utime(tree / name, (begin, begin))
            wheels.append(self.folder / f"{begin}.whl")
            wheel_builder.zip_tree(tree, wheels[-1], "RECORD")
        self.assertEqual(*(wheel.read_bytes() for wheel in wheels))

    def test_what_is_missing_is_named(self):
        with self.assertRaisesRegex(SystemExit, "build the target causeway_site_c"):
            wheel_builder.write_wheel(self.folder, self.folder)
        with self.assertRaisesRegex(SystemExit, "install from a clone"):
            wheel_builder.build_sdist(self.folder)

    def test_a_tag_that_promises_too_much_is_refused(self):
        wheel_builder.GLIBC, promised = (2, 17), wheel_builder.GLIBC
        self.addCleanup(setattr, wheel_builder, "GLIBC", promised)
        library = self.folder / wheel_builder.LIBRARY
        shutil.copyfile(BUILD / "bin" / library.name, library)
        with self.assertRaisesRegex(SystemExit, r"needs glibc 2\.\d+, newer than the wheel says, 2\.17"):
            wheel_builder.bundle([library], self.folder / "lib")


if __name__ == "__main__":
    unittest.main()
