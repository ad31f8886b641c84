#!/usr/bin/python3
"""The same merge in PyTorch, in NumPy and in Causeway, on the same machine with as many threads.

  compare_merge.py [--merge_bench PROGRAM] [--values N] [--threads N] [--repeats N] [--json]

One round of one fragment, with 2 and with 8 int4 contributions: decode them, sum them by weight,
take Nesterov's step, encode published - theta as int4, apply that to published. merge_bench does it
and leaves behind what it was given and what came out (--dump); both others start from the same
bytes, and must come to the same theta, momentum and published values, within 1e-6 (norm of the
difference over the norm). Causeway computes in double and rounds once, the others in fp32; so now
and then a value or a scale falls on the other side of the border between two codes. At most one
published value in 10000 may differ for this; these are counted and left out of the norm.
merge_bench also hashes the answer and the published values; the others do not.

Both others go slice by slice, so that what they make in between stays in the caches: NumPy with one
slice per thread, PyTorch with all threads in one slice. Without PyTorch the comparison is with NumPy
alone. Times are the best of the repeats. Exit status 1 if results differ.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np

try:
    import torch
except ImportError:
    torch = None

CHUNK, BLOCK = 4096, 64
SCALE_BYTES = CHUNK // BLOCK * 2
CHUNK_BYTES = SCALE_BYTES + CHUNK // 2
SLICE = 64 * CHUNK  # Values.
RATE, MOMENTUM = 0.7, 0.9
RECIPROCAL = float.fromhex("0x1.249248p-3")  # 1/7 rounded toward zero: docs/codecs.md.
SMALLEST_SCALE = 0x0D80
LARGEST_DEVIATION = 1e-6
LARGEST_SHARE_OF_OTHER_CODES = 1e-4
# Between what rounding does to a published value and what another code does, far from both.
OTHER_CODE = 1e-6


def slices(values):
    return [slice(begin, min(begin + SLICE, values)) for begin in range(0, values, SLICE)]


def encoded_slice(values):
    return slice(values.start // CHUNK * CHUNK_BYTES, values.stop // CHUNK * CHUNK_BYTES)


class NumpyMerge:
    name = "numpy"

    def __init__(self, before, contributions, threads):
        self.state = {name: array.copy() for name, array in before.items()}
        self.contributions = contributions
        self.answer = np.empty_like(contributions[0])
        self.pool = concurrent.futures.ThreadPoolExecutor(threads)

    def run(self):
        cuts = slices(self.state["theta"].size)
        for _ in self.pool.map(self._merge_slice, cuts):
            pass

    def _merge_slice(self, cut):
        theta, momentum, published = (self.state[name][cut]
                                      for name in ("theta", "momentum", "published"))
        coded = encoded_slice(cut)
        g = np.zeros(theta.size, np.float32)
        weight = np.float32(1 / len(self.contributions))
        for contribution in self.contributions:
            delta = self._decode(contribution[coded])
            delta *= weight
            g += delta
        momentum *= np.float32(MOMENTUM)
        momentum += g
        g += np.float32(MOMENTUM) * momentum
        g *= np.float32(RATE)
        theta -= g
        answer = self.answer[coded]
        self._encode(published - theta, answer)
        published -= self._decode(answer)

    @staticmethod
    def _decode(encoded):
        chunks = encoded.reshape(-1, CHUNK_BYTES)
        bits = np.ascontiguousarray(chunks[:, :SCALE_BYTES]).view(np.uint16).astype(np.uint32)
        steps = (bits << 16).view(np.float32) * np.float32(RECIPROCAL)
        packed = chunks[:, SCALE_BYTES:].view(np.int8)
        values = np.empty((packed.shape[0], CHUNK), np.float32)
        # The sign of a nibble is its highest bit.
        values[:, 0::2] = (packed << 4) >> 4
        values[:, 1::2] = packed >> 4
        blocks = values.reshape(-1, BLOCK)
        blocks *= steps.reshape(-1, 1)
        return values.reshape(-1)

    @staticmethod
    def _encode(difference, out):
        blocks = difference.reshape(-1, BLOCK)
        bits = (np.abs(blocks).max(axis=1).view(np.uint32) + np.uint32(0xFFFF)) >> 16
        bits[bits < SMALLEST_SCALE] = 0
        scales = (bits << 16).view(np.float32)
        with np.errstate(divide="ignore"):
            inverse = np.where(scales > 0, np.float32(7) / scales, np.float32(0))
        blocks *= inverse.reshape(-1, 1)
        codes = np.rint(difference).astype(np.int8).view(np.uint8) & 15
        chunks = out.reshape(-1, CHUNK_BYTES)
        chunks[:, :SCALE_BYTES] = bits.astype(np.uint16).view(np.uint8).reshape(-1, SCALE_BYTES)
        chunks[:, SCALE_BYTES:] = (codes[0::2] | (codes[1::2] << 4)).reshape(-1, CHUNK // 2)


class TorchMerge:
    name = "torch"

    def __init__(self, before, contributions, threads):
        torch.set_num_threads(threads)
        self.tensors = {name: torch.from_numpy(array.copy()) for name, array in before.items()}
        self.contributions = [torch.from_numpy(array) for array in contributions]
        self.answer = torch.empty_like(self.contributions[0])

    @property
    def state(self):
        return {name: tensor.numpy() for name, tensor in self.tensors.items()}

    def run(self):
        with torch.no_grad():
            for cut in slices(self.tensors["theta"].numel()):
                self._merge_slice(cut)

    def _merge_slice(self, cut):
        theta, momentum, published = (self.tensors[name][cut]
                                      for name in ("theta", "momentum", "published"))
        coded = encoded_slice(cut)
        g = torch.zeros_like(theta)
        for contribution in self.contributions:
            g.add_(self._decode(contribution[coded]), alpha=1 / len(self.contributions))
        momentum.mul_(MOMENTUM).add_(g)
        theta.sub_(g.add_(momentum, alpha=MOMENTUM), alpha=RATE)
        answer = self.answer[coded]
        self._encode(published - theta, answer)
        published.sub_(self._decode(answer))

    @staticmethod
    def _decode(encoded):
        chunks = encoded.view(-1, CHUNK_BYTES)
        scales = chunks[:, :SCALE_BYTES].contiguous().view(torch.bfloat16).to(torch.float32)
        packed = chunks[:, SCALE_BYTES:].view(torch.int8)
        values = torch.empty(packed.shape[0], CHUNK)
        values[:, 0::2] = (packed << 4) >> 4
        values[:, 1::2] = packed >> 4
        values.view(-1, BLOCK).mul_((scales * RECIPROCAL).view(-1, 1))
        return values.view(-1)

    @staticmethod
    def _encode(difference, out):
        blocks = difference.view(-1, BLOCK)
        bits = (blocks.abs().amax(dim=1).view(torch.int32) + 0xFFFF) >> 16
        bits[bits < SMALLEST_SCALE] = 0
        scales = (bits << 16).view(torch.float32)
        inverse = torch.where(scales > 0, 7 / scales, torch.zeros_like(scales))
        codes = blocks.mul_(inverse.view(-1, 1)).round_().to(torch.int8).view(torch.uint8) & 15
        codes = codes.view(-1, CHUNK)
        chunks = out.view(-1, CHUNK_BYTES)
        chunks[:, :SCALE_BYTES] = bits.to(torch.int16).view(torch.uint8).view(-1, SCALE_BYTES)
        chunks[:, SCALE_BYTES:] = codes[:, 0::2] | (codes[:, 1::2] << 4)


def read_dump(folder, workers):
    """(state before, contributions, state after) of one merge of merge_bench."""
    def read(name, dtype):
        return np.fromfile(folder / f"{workers}.{name}", dtype)

    states = [{name: read(f"{when}.{name}.f32", np.float32)
               for name in ("theta", "momentum", "published")} for when in ("before", "after")]
    contributions = [read(f"contribution.{worker}.bin", np.uint8) for worker in range(workers)]
    return states[0], contributions, states[1]


def other_codes(ours, theirs):
    return np.abs(ours - theirs) > OTHER_CODE


def deviation(ours, theirs):
    difference = np.linalg.norm((ours - theirs).astype(np.float64))
    return float(difference / np.linalg.norm(theirs.astype(np.float64)))


def compare(kind, folder, workers, threads, repeats):
    """(seconds of the fastest merge, then of the first merge: the largest relative deviation and
    the share of published values with another code)."""
    before, contributions, after = read_dump(folder, workers)
    merge = kind(before, contributions, threads)
    best = float("inf")
    for repeat in range(repeats + 1):
        start = time.perf_counter()
        merge.run()
        if repeat > 0:
            best = min(best, time.perf_counter() - start)
        else:  # Also warms up.
            others = other_codes(merge.state["published"], after["published"])
            merge.state["published"][others] = after["published"][others]
            share = float(others.mean())
            largest = max(deviation(merge.state[name], after[name]) for name in after)
    return best, largest, share


def main():
    default = pathlib.Path(__file__).resolve().parents[2] / "build/release/bin/merge_bench"
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--merge_bench", default=str(default), metavar="PROGRAM")
    parser.add_argument("--values", type=int, default=1 << 24, help="a multiple of 4096")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true",
                        help="a run of a second that only shows that everything works")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    kinds = [NumpyMerge]
    if torch is None:
        print("PyTorch is not installed (Debian: python3-torch): comparing with NumPy alone",
              file=sys.stderr)
    else:
        kinds.append(TorchMerge)
    values = 1 << 18 if arguments.quick else arguments.values
    repeats = 1 if arguments.quick else arguments.repeats
    if values < CHUNK or values % CHUNK or repeats < 1 or arguments.threads < 1:
        parser.error(f"--values must be a multiple of {CHUNK}, --repeats and --threads at least 1")

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        command = [arguments.merge_bench, "--json", f"--values={values}", f"--repeats={repeats}",
                   f"--threads={arguments.threads}", f"--dump={folder}"]
        bench = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        report = {"values": values, "threads": arguments.threads,
                  "load_average": bench["load_average"], "rows": []}
        for theirs in bench["rows"]:
            row = {"workers": theirs["workers"], "causeway_seconds": theirs["seconds"]}
            for kind in kinds:
                seconds, largest, share = compare(kind, folder, theirs["workers"],
                                                  arguments.threads, repeats)
                row[f"{kind.name}_seconds"] = seconds
                row[f"{kind.name}_ratio"] = seconds / theirs["seconds"]
                row[f"{kind.name}_deviation"] = largest
                row[f"{kind.name}_other_codes"] = share
            report["rows"].append(row)

    agree = all(row[f"{kind.name}_deviation"] <= LARGEST_DEVIATION and
                row[f"{kind.name}_other_codes"] <= LARGEST_SHARE_OF_OTHER_CODES
                for row in report["rows"] for kind in kinds)
    report["agree"] = agree
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        for row in report["rows"]:
            print(f"merge of {row['workers']} int4, {values} values, {arguments.threads} threads: "
                  f"causeway {row['causeway_seconds']:.4f} s")
            for kind in kinds:
                print(f"  {kind.name:6} {row[kind.name + '_seconds']:.4f} s, "
                      f"{row[kind.name + '_ratio']:.1f} times as long; "
                      f"deviation {row[kind.name + '_deviation']:.1e}, "
                      f"other codes {row[kind.name + '_other_codes']:.1e}")
        print("results agree" if agree else "FAILED: results differ")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
