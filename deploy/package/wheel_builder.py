"""Makes the wheel: what pip calls for pyproject.toml (PEP 517), and deploy/build_wheel for other
machines. Needs nothing from PyPI.

A wheel has the Python package, the library of a site and the programs, as this machine has built
them. deploy/build_wheel adds the shared libraries that they need under names of their own, so that
they run wherever glibc is as new as GLIBC says, and never meet another copy of them in a process.
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
PROGRAMS = ("causeway-coordinator", "causeway-worker", "causewayctl")
TARGETS = ("causeway_site_c", *PROGRAMS)
GLIBC = (2, 35)  # Ubuntu 22.04's; Debian 12 has 2.36.
# What pip puts into PATH for a program: without numpy, which `import causeway` takes.
SCRIPT = """\
#!python
import importlib.util
import os
import sys

package = importlib.util.find_spec("causeway").submodule_search_locations[0]
program = os.path.join(package, "bin", "{program}")
os.execv(program, [program, *sys.argv[1:]])
"""
# Every Linux has these, newer ones newer, and a process wants one of each.
OF_THE_SYSTEM = re.compile(
    r"^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+)\.so")
LDD_LINE = re.compile(r"^\s*(\S+) => (/\S+)", re.MULTILINE)
GLIBC_VERSION = re.compile(r"Name: GLIBC_([0-9.]+)")


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


def built_files(build=None):
    """The folder of library and programs: of a build that is named as it stands, else built now."""
    if build is None:
        tool("cmake", "configures the build")
        tool("ninja", "runs the build")
        build = ROOT / "build" / "release"
        for command in (["cmake", "--preset", "release"],
                        ["cmake", "--build", str(build), "--target", *TARGETS]):
            if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
                fail(f"`{' '.join(command)}` failed, with its reasons above; "
                     "deploy/install_packages installs what it needs on Debian 12")
    folder = pathlib.Path(build) / "bin"
    for name, target in zip((LIBRARY, *PROGRAMS), TARGETS):
        if not (folder / name).exists():
            fail(f"{folder / name} is missing: build the target {target} there")
    return folder


def bundle(files, folder):
    """Copies the libraries that the files need to `folder`, and ties each file to the copies. Returns
    the libraries."""
    tool("patchelf", "gives libraries other names")
    needed = {name: pathlib.Path(path).resolve()
              for file in files for name, path in LDD_LINE.findall(output_of("ldd", file))
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
    for file in [*files, *copies.values()]:
        asked = output_of("patchelf", "--print-needed", file).split()
        replace = [word for name in asked if name in names
                   for word in ("--replace-needed", name, names[name])]
        # Debian 12's patchelf does not do both at once.
        if replace:
            subprocess.run(["patchelf", *replace, file], check=True)
        path = os.path.relpath(folder, file.parent)
        subprocess.run(["patchelf", "--set-rpath", f"$ORIGIN/{path}", file], check=True)
        newest = max((tuple(map(int, version.split("."))) for version in
                      GLIBC_VERSION.findall(output_of("readelf", "--version-info", file))), default=GLIBC)
        if newest > GLIBC:
            fail(f"{file.name} needs glibc {'.'.join(map(str, newest))}, newer than the wheel says, "
                 f"{'.'.join(map(str, GLIBC))}: build it on Debian 12, or raise GLIBC")
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
Summary: One language model, trained at several datacenters: coordinator, worker, PyTorch sites
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: numpy
Provides-Extra: torch
Requires-Dist: torch>=2.4; extra == "torch"
Description-Content-Type: text/markdown

Streaming DiLoCo: `causeway demo` trains a small model at two sites on this machine. The programs are
`causeway-coordinator`, `causeway-worker` and `causewayctl`; `causeway.torch` makes a site of a PyTorch
trainer.
"""


def write_wheel(out, build=None, bundled=False):
    """Writes the wheel to the folder `out`; returns its name."""
    built = built_files(build)
    system = f"manylinux_{GLIBC[0]}_{GLIBC[1]}" if bundled else "linux"
    tag = f"py3-none-{system}_{platform.machine()}"
    name = f"causeway-{version()}"
    wheel = pathlib.Path(out) / f"{name}-{tag}.whl"
    wheel.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        tree = pathlib.Path(scratch)
        package, info, scripts = (tree / "causeway", tree / f"{name}.dist-info",
                                  tree / f"{name}.data" / "scripts")
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns(
            "__pycache__", "*.so", "CMakeLists.txt"))
        shutil.copy(ROOT / "worker" / "site" / "causeway_site.h", package)
        # What `causeway fleet` launches.
        shutil.copytree(ROOT / "deploy" / "skypilot", package / "fleet" / "skypilot")
        for folder in (package / "bin", info, scripts):
            folder.mkdir(parents=True)
        copies = [package / LIBRARY, *(package / "bin" / program for program in PROGRAMS)]
        for copy in copies:
            shutil.copyfile(built / copy.name, copy)
            subprocess.run([tool("strip", "leaves debug information out"), "--strip-unneeded", copy],
                           check=True)
        for program in PROGRAMS:
            (scripts / program).write_text(SCRIPT.format(program=program), encoding="utf-8")
        for folder in (scripts, package / "bin"):
            shutil.copyfile(ROOT / "deploy" / "make_certificates", folder / "causeway-make-certificates")
        if bundled:
            terms = licenses(bundle(copies, package / "lib"))
            (info / "licenses").mkdir()
            for owner, path in terms.items():
                shutil.copyfile(path, info / "licenses" / f"{owner}.txt")
        shutil.copyfile(ROOT / "LICENSE", info / "LICENSE")
        (info / "METADATA").write_text(metadata(), encoding="utf-8")
        (info / "entry_points.txt").write_text(
            "[console_scripts]\ncauseway = causeway.__main__:main\n", encoding="utf-8")
        (info / "WHEEL").write_text(
            f"Wheel-Version: 1.0\nGenerator: causeway\nRoot-Is-Purelib: false\nTag: {tag}\n",
            encoding="utf-8")
        zip_tree(tree, wheel, f"{info.name}/RECORD")
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
    program = ".so" in inside or "/bin/" in inside or "/scripts/" in inside
    info.external_attr = (0o100755 if program else 0o100644) << 16
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
    parser = argparse.ArgumentParser(prog="deploy/build_wheel", allow_abbrev=False, description=(
        "Makes the wheel of everything with all libraries that it needs but those of every system (pip install "
        "FOLDER/causeway-*.whl); installs what is missing for it (deploy/packages, deploy/packages_pack)."))
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "wheels", metavar="FOLDER",
                        help="receives the wheel (default build/wheels)")
    parser.add_argument("--build", metavar="FOLDER", help="packs that build as it stands, and builds nothing")
    options = parser.parse_args()
    print(options.out / write_wheel(options.out, options.build, bundled=True))


if __name__ == "__main__":
    main()
