"""The stored inputs of a fuzz target: tests/fuzz/corpus/TARGET.tar.

An archive is plain ustar (POSIX.1-1988): files alone, sorted by name, without times and owners. The
same inputs give the same bytes, so that git sees a change only where there is one.

  corpus_archive.py PROGRAM   replays all that is stored for the program's targets
"""
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")


class ArchiveError(Exception):
    """Names the file, and says what to do."""


def path_of(target):
    return os.path.join(FOLDER, target + ".tar")


def pack(inputs):
    """The archive of `inputs`, which are bytes by their names."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in sorted(inputs.items()):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return archive.getvalue()


def read(path):
    """The inputs in an archive, by name; ArchiveError unless pack() makes the same bytes of them."""
    with open(path, "rb") as file:
        archive = file.read()
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            inputs = {member.name: tar.extractfile(member).read()
                      for member in tar.getmembers() if member.isfile()}
    except tarfile.TarError as error:
        raise ArchiveError(f"{path} is no archive of inputs: {error}; restore it with git") from None
    # tarfile passes over what follows a bad header.
    if pack(inputs) != archive:
        raise ArchiveError(
            f"{path} is cut short, damaged or of another tool: it should be {len(pack(inputs))} "
            f"bytes of plain ustar, sorted, without times and owners; restore it with git, or unpack "
            "it and store its files with tests/fuzz/add")
    return inputs


def stored(target):
    """The inputs of a target by name; none if it has no archive yet."""
    return read(path_of(target)) if os.path.exists(path_of(target)) else {}


def store(target, inputs):
    """Makes `inputs` all that the target has."""
    os.makedirs(FOLDER, exist_ok=True)
    scratch = path_of(target) + ".tmp"
    with open(scratch, "wb") as file:
        file.write(pack(inputs))
    os.replace(scratch, path_of(target))


def add(target, inputs):
    """Stores `inputs` beside what the target has; returns how many of them are new."""
    had = stored(target)
    for name, content in inputs.items():
        if not re.fullmatch(r"[\w.-]{1,100}", name, re.ASCII):
            raise ArchiveError(
                f"{name!r} cannot be stored: a name is 1 to 100 letters, digits or any of _.-")
        if had.get(name, content) != content:
            raise ArchiveError(f"{path_of(target)} has another input named {name}: choose a name")
    store(target, {**had, **inputs})
    return len(inputs.keys() - had.keys())


def read_folder(folder):
    inputs = {}
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file:
            inputs[name] = file.read()
    return inputs


def write_folder(inputs, folder):
    os.makedirs(folder, exist_ok=True)
    for name, content in inputs.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)


def replay(program):
    """Exit status of the first target with a finding, after its lines; ArchiveError if one has no inputs."""
    for target in subprocess.run([program, "--list"], check=True, capture_output=True, text=True).stdout.split():
        inputs = stored(target)
        if not inputs:
            raise ArchiveError(f"{path_of(target)} has no inputs: make them with `tests/fuzz/run --seconds 60 {target}` "
                               "and commit it")
        with tempfile.TemporaryDirectory(prefix=f"causeway_fuzz_{target}_") as folder:
            write_folder(inputs, folder)
            done = subprocess.run([program, f"--target={target}", folder], stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            return done.returncode
    return 0


if __name__ == "__main__":
    try:
        sys.exit(replay(sys.argv[1]))
    except ArchiveError as error:
        sys.exit(str(error))
