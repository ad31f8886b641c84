"""deploy/compose on a real engine: images of this build's packages, mutual TLS, two deaths, one end."""

import pathlib
import subprocess
import sys
import tempfile

import tools
from tools import BUILD, ROOT

TRY = ROOT / "tests/deploy/compose_try"


def main():
    if tools.sanitized():
        print("SKIP: a build with sanitizers is not packed")
        return tools.SKIPPED
    # Asked first: packing takes a while.
    asked = subprocess.run([TRY, "--can_run"], stdin=subprocess.DEVNULL, check=False)
    if asked.returncode != 0:
        return asked.returncode
    with tempfile.TemporaryDirectory(prefix="causeway_packages_") as folder:
        packages = pathlib.Path(folder)
        packed = tools.run(ROOT / "deploy/build_packages", "--build", BUILD, "--out", packages,
                           "--unchecked")
        if packed[0] != 0:
            print(packed[1])
            return 1
        return subprocess.run([TRY, "--packages", packages, "--text", ROOT / "docs"],
                              stdin=subprocess.DEVNULL, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
