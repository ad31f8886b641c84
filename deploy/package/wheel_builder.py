"""Makes the wheel of the Python package: what pip calls for pyproject.toml (PEP 517), and
deploy/build_wheel for other machines. Needs nothing from PyPI.

usage: wheel_builder.py OUT [--build FOLDER] [--bundle]

A plain wheel has the library of a site as this machine has built it. --bundle adds the shared
libraries that it needs under names of their own, so that it runs on any Debian 12 or newer and never
meets another copy of them in the process.
"""

import argparse
import base64
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "worker" / "python" / "causeway"
LIBRARY = "libcauseway_site.so"
TARGET = "causeway_site_c"
TAG = f"py3-none-linux_{platform.machine()}"
# Every Debian has these, newer ones newer, and a process wants one of each.
OF_THE_SYSTEM = re.compile(
    r"^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+)\.so")
LDD_LINE = re.compile(r"^\s*(\S+) => (/\S+)", re.MULTILINE)


def fail(message):
    sys.exit(f"causeway: {message}")


def output_of(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True,
                          text=True).stdout


def tool(name, purpose):
    if shutil.which(name) is None:
        fail(f"{name} is missing, which {purpose}; deploy/install_packages installs what a build "
             "needs on Debian 12")
    return name


def version():
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    return re.search(r"project\(causeway VERSION ([0-9.]+)", text).group(1)


def built_library(build=None):
    """Builds the library, unless a build is named, which is taken as it stands."""
    if build is None:
        tool("cmake", "configures the build")
        tool("ninja", "runs the build")
        build = ROOT / "build" / "release"
        for command in (["cmake", "--preset", "release"],
                        ["cmake", "--build", str(build), "--target", TARGET]):
            if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
                fail(f"`{' '.join(command)}` failed, with its reasons above; "
                     "deploy/install_packages installs what it needs on Debian 12")
    library = pathlib.Path(build) / "bin" / LIBRARY
    if not library.exists():
        fail(f"{library} is missing: build the target {TARGET} there")
    return library


def bundle(library, folder):
    """Copies what the library needs beside it, and ties each to its copy. Returns the copies."""
    tool("patchelf", "gives libraries other names")
    needed = {name: pathlib.Path(path).resolve()
              for name, path in LDD_LINE.findall(output_of("ldd", library))
              if not OF_THE_SYSTEM.match(name)}
    names = {}
    for name, path in needed.items():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
        names[name] = f"causeway-{digest}-{name}"
    folder.mkdir()
    copies = {name: folder / names[name] for name in names}
    for name, copy in copies.items():
        shutil.copyfile(needed[name], copy)
        copy.chmod(0o644)
        subprocess.run(["patchelf", "--set-soname", copy.name, copy], check=True)
    for file in [library, *copies.values()]:
        asked = output_of("patchelf", "--print-needed", file).split()
        replace = [word for name in asked if name in names
                   for word in ("--replace-needed", name, names[name])]
        # Debian 12's patchelf does not do both at once.
        if replace:
            subprocess.run(["patchelf", *replace, file], check=True)
        path = f"$ORIGIN/{folder.name}" if file == library else "$ORIGIN"
        subprocess.run(["patchelf", "--set-rpath", path, file], check=True)
    return needed.values()


def licenses(libraries):
    """The terms of what is bundled, by Debian's package."""
    found = {}
    for library in libraries:
        # Debian lists some files without the /usr before them.
        place = "/".join(library.parts[-2:])
        owner = output_of("dpkg", "-S", f"*/{place}").split(":")[0]
        found[owner] = pathlib.Path("/usr/share/doc") / owner / "copyright"
    return found


def metadata():
    return f"""Metadata-Version: 2.1
Name: causeway
Version: {version()}
Summary: Sites of a Causeway run: one language model, trained at several datacenters
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: numpy
Provides-Extra: torch
Requires-Dist: torch>=2.4; extra == "torch"
Description-Content-Type: text/markdown

Streaming DiLoCo for PyTorch trainers, and for trainers of numpy arrays: docs/pytorch.md.
"""


def write_wheel(out, build=None, bundled=False):
    """Writes the wheel to the folder `out`; returns its name."""
    library = built_library(build)
    name = f"causeway-{version()}"
    info = f"{name}.dist-info"
    wheel = pathlib.Path(out) / f"{name}-{TAG}.whl"
    wheel.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        tree = pathlib.Path(scratch)
        shutil.copytree(PACKAGE, tree / "causeway", ignore=shutil.ignore_patterns(
            "__pycache__", "*.so", "CMakeLists.txt"))
        copy = tree / "causeway" / LIBRARY
        shutil.copyfile(library, copy)
        subprocess.run([tool("strip", "leaves debug information out"), "--strip-unneeded", copy],
                       check=True)
        (tree / info).mkdir()
        if bundled:
            terms = licenses(bundle(copy, tree / "causeway" / "lib"))
            (tree / info / "licenses").mkdir()
            for owner, path in terms.items():
                shutil.copyfile(path, tree / info / "licenses" / f"{owner}.txt")
        shutil.copyfile(ROOT / "LICENSE", tree / info / "LICENSE")
        (tree / info / "METADATA").write_text(metadata(), encoding="utf-8")
        (tree / info / "WHEEL").write_text(
            f"Wheel-Version: 1.0\nGenerator: causeway\nRoot-Is-Purelib: false\nTag: {TAG}\n",
            encoding="utf-8")
        zip_tree(tree, wheel, f"{info}/RECORD")
    return wheel.name


def zip_tree(tree, wheel, record):
    """The same bytes for the same files."""
    lines = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(tree.rglob("*")):
            if path.is_dir():
                continue
            inside = path.relative_to(tree).as_posix()
            content = path.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
            lines.append(f"{inside},sha256={digest},{len(content)}")
            archive.writestr(entry(inside), content, zipfile.ZIP_DEFLATED)
        archive.writestr(entry(record), "\n".join([*lines, f"{record},,", ""]))


def entry(inside):
    info = zipfile.ZipInfo(inside, (1980, 1, 1, 0, 0, 0))
    info.external_attr = (0o100755 if ".so" in inside else 0o100644) << 16
    return info


# --- What pip calls --------------------------------------------------------------------------------
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    del config_settings, metadata_directory
    return write_wheel(wheel_directory, os.environ.get("CAUSEWAY_BUILD"))


def build_sdist(sdist_directory, config_settings=None):
    del sdist_directory, config_settings
    fail("there is no source distribution: install from a clone (pip install .), or make a wheel "
         "with deploy/build_wheel")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out")
    parser.add_argument("--build")
    parser.add_argument("--bundle", action="store_true")
    options = parser.parse_args()
    print(pathlib.Path(options.out) / write_wheel(options.out, options.build, options.bundle))


if __name__ == "__main__":
    main()
