"""The default text: headers that a build needs, and so has installed; elsewhere Python's library."""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

# Folders of the packages that deploy/packages names, so that two machines with the same packages
# train on the same text. What else lies in /usr/include does not matter.
HEADER_FOLDERS = (
    "/usr/include/c++/12",
    "/usr/include/absl",
    "/usr/include/google/protobuf",
    "/usr/include/grpc",
    "/usr/include/grpcpp",
    "/usr/include/gtest",
    "/usr/include/gmock",
    "/usr/include/hwy",
    "/usr/include/nlohmann",
    "/usr/include/oneapi",
    "/usr/include/spdlog",
    "/usr/include/benchmark",
    "/usr/include/linux",
    "/usr/include/asm-generic",
)
# Files without an ending are the C++ standard library's: <vector>.
ENDINGS = {"", ".py", ".h", ".hh", ".hpp", ".hxx", ".tcc", ".inc", ".ipp"}
LARGEST_FILE_BYTES = 256 * 1024  # Longer ones are generated tables.


class CorpusError(Exception):
    """There is no text to train on."""


def write_default_corpus(
    path: Path, folders: tuple[str, ...] | None = None, limit_bytes: int = 20_000_000
) -> tuple[int, int]:
    """Joins the files of the folders into one of at most limit_bytes. Returns (files, bytes).

    Duplicates and what is not UTF-8 text are left out. The order is that of the contents' hashes:
    the same everywhere, and any part of the text is a fair sample of the whole.
    """
    if folders is None:
        built = Path(HEADER_FOLDERS[0]).is_dir()
        folders = HEADER_FOLDERS if built else (sysconfig.get_path("stdlib"),)
    texts: dict[bytes, Path] = {}
    for folder in folders:
        for file in Path(folder).rglob("*"):
            if (file.suffix not in ENDINGS or "site-packages" in file.parts
                    or not file.is_file()):
                continue
            if not 0 < file.stat().st_size <= LARGEST_FILE_BYTES:
                continue
            content = file.read_bytes()
            if _is_text(content):
                texts.setdefault(hashlib.sha256(content).digest(), file)
    files = total = 0
    with path.open("wb") as output:
        for _, file in sorted(texts.items()):
            content = file.read_bytes()
            if total + len(content) + 1 > limit_bytes:
                continue
            output.write(content)
            output.write(b"\n")
            files += 1
            total += len(content) + 1
    if total == 0:
        raise CorpusError(f"there is no text in {', '.join(folders)}; name one with --corpus")
    return files, total


def _is_text(content: bytes) -> bool:
    if b"\0" in content:
        return False
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
