#!/usr/bin/env python3
"""The wheel: what is in it, and that it works in an empty virtual environment."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import venv
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "deploy" / "package"))

import wheel_builder  # noqa: E402

BUILD = pathlib.Path(os.environ["CAUSEWAY_BIN"]).parent
LOADS = """
import os, causeway, causeway._library
print(causeway._library.load().causeway_software_version().decode())
with open("/proc/self/maps") as maps:
    print(*sorted({line.split()[-1] for line in maps if ".so" in line}), sep="\\n")
"""


class WheelTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="causeway_wheel_"))
        self.addCleanup(shutil.rmtree, self.folder)

    def installed(self, wheel):
        """A virtual environment that has the wheel, and Debian's numpy."""
        place = self.folder / "environment"
        venv.EnvBuilder(system_site_packages=True, with_pip=True).create(place)
        python = place / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
                        wheel], check=True, timeout=240)
        return python

    def test_a_wheel_brings_all_that_it_loads(self):
        if shutil.which("patchelf") is None:
            self.skipTest("patchelf is missing: deploy/install_packages packages_pack")
        wheel = self.folder / wheel_builder.write_wheel(self.folder, BUILD, bundled=True)
        python = self.installed(wheel)
        variables = {name: value for name, value in os.environ.items()
                     if name not in ("CAUSEWAY_SITE_LIBRARY", "PYTHONPATH")}
        done = subprocess.run([python, "-c", LOADS], env=variables, cwd=self.folder, check=True,
                              capture_output=True, text=True, timeout=120)
        version, *libraries = done.stdout.split()
        self.assertEqual(version, wheel_builder.version())
        mine = [path for path in libraries if "/site-packages/causeway/" in path]
        self.assertGreater(len(mine), 20)
        for name in ("libgrpc", "libprotobuf", "libabsl_base", "libssl"):
            self.assertTrue(any(f"-{name}." in path for path in mine), name)
            self.assertFalse(any(pathlib.Path(path).name.startswith(f"{name}.")
                                 for path in libraries), name)

    def test_the_wheel_is_whole(self):
        name = wheel_builder.write_wheel(self.folder, BUILD)
        again = self.folder / "again"
        wheel_builder.write_wheel(again, BUILD)
        self.assertEqual((self.folder / name).read_bytes(), (again / name).read_bytes())
        with zipfile.ZipFile(self.folder / name) as wheel:
            names = wheel.namelist()
            record = wheel.read(next(n for n in names if n.endswith("RECORD"))).decode()
        self.assertEqual(sorted(names), sorted(line.split(",")[0] for line in record.split()))
        for needed in ("causeway/py.typed", "causeway/torch/__init__.py",
                       "causeway/libcauseway_site.so"):
            self.assertIn(needed, names)

    def test_what_is_missing_is_named(self):
        with self.assertRaisesRegex(SystemExit, "build the target causeway_site_c"):
            wheel_builder.write_wheel(self.folder, self.folder)
        with self.assertRaisesRegex(SystemExit, "install from a clone"):
            wheel_builder.build_sdist(self.folder)


if __name__ == "__main__":
    unittest.main()
