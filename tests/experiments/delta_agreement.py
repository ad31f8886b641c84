#!/usr/bin/python3
"""How much the workers of a run agree: are their deltas of a round alike, or mostly noise?

    tests/experiments/delta_agreement.py out-experiments/study/small-6k-muon-mean-seed101/coordinator

Reads the deltas that a run directory still holds: those of the last rounds, or all with
--retain_deltas. Prints for each round, all fragments together, the mean cosine between the deltas of
two workers, and the length of their plain mean as a share of their own. Deltas that agree have 1 and 1;
M that are independent have 0 and 1 / sqrt(M). Codecs whose deltas need no published values: all but fp32.
"""

import argparse
import itertools
import json
import re
import struct
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reference"))

from causeway_oracle.codecs import CODECS  # noqa: E402  (after the path is known)


def read_arrays(path: Path) -> tuple[dict, dict[str, bytes]]:
    """Metadata and arrays of an array file (docs/formats.md), without a look at its checksum."""
    content = path.read_bytes()
    header_size = struct.unpack_from("<I", content, 12)[0]
    header = json.loads(content[16:16 + header_size])
    arrays, at = {}, 16 + header_size
    for array in header["arrays"]:
        arrays[array["name"]] = content[at:at + array["bytes"]]
        at += array["bytes"]
    return header["metadata"], arrays


def agreement(deltas: list[list[np.ndarray]]) -> tuple[float, float]:
    """(mean cosine, length of the mean over the mean length) of one round. deltas: by fragment, by
    worker."""
    workers = [np.concatenate(parts) for parts in zip(*deltas)]
    lengths = [float(np.linalg.norm(delta)) for delta in workers]
    cosines = [float(workers[i] @ workers[j]) / (lengths[i] * lengths[j])
               for i, j in itertools.combinations(range(len(workers)), 2)]
    mean = np.mean(workers, axis=0)
    return float(np.mean(cosines)), float(np.linalg.norm(mean)) / float(np.mean(lengths))


def rounds(run_dir: Path) -> dict[int, list[list[np.ndarray]]]:
    """By round: the deltas of every fragment, by worker, of rounds that are there whole."""
    sizes = {}
    for path in run_dir.glob("snapshots/*.snapshot"):
        metadata, arrays = read_arrays(path)
        sizes[metadata["fragment"]] = len(arrays["theta"]) // 4
    found: dict[int, dict[int, list[np.ndarray]]] = {}
    for path in sorted(run_dir.glob("deltas/*.delta"),
                       key=lambda path: re.sub(r"^\d+-", "", path.name)):  # By worker, not by arrival.
        metadata, arrays = read_arrays(path)
        fragment = metadata["fragment"]
        base = np.zeros(sizes[fragment], np.float32)
        if metadata["codec"] == "FP32":
            raise ValueError(f"{path}: a delta in FP32 is a distance from published values")
        delta = CODECS[metadata["codec"]].decode(arrays["object"], base)
        found.setdefault(metadata["round"], {}).setdefault(fragment, []).append(delta)
    return {number: [parts[fragment] for fragment in sorted(parts)]
            for number, parts in sorted(found.items())
            if len(parts) == len(sizes) and {len(part) for part in parts.values()} != {1}
            and len({len(part) for part in parts.values()}) == 1}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="delta_agreement.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    parsed = parser.parse_args(arguments)
    try:
        figures = {number: agreement(deltas) for number, deltas in rounds(parsed.run_dir).items()}
    except (KeyError, OSError, ValueError) as error:
        print(f"delta_agreement: {error}", file=sys.stderr)
        return 1
    if not figures:
        print(f"delta_agreement: no round in {parsed.run_dir} has deltas of two workers for all fragments",
              file=sys.stderr)
        return 1
    print("round  cosine  length of the mean")
    for number, (cosine, length) in figures.items():
        print(f"{number:5}  {cosine:6.3f}  {length:6.3f}")
    cosine, length = np.mean(list(figures.values()), axis=0)
    print(f" mean  {cosine:6.3f}  {length:6.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
