"""What a run of the real code left behind, as reference_trace writes it (run_trace.cc)."""

import json
import pathlib

import numpy as np


def folders(paths):
    """The traces at or below the paths. ValueError where there is none."""
    found = []
    for path in map(pathlib.Path, paths):
        inside = [path] if (path / "trace.json").exists() else sorted(
            file.parent for file in path.glob("*/trace.json"))
        if not inside:
            raise ValueError(f"there is no trace.json in {path} nor in a folder of it: run "
                             f"reference_trace --out {path} first")
        found += inside
    return found


def read(path, dtype):
    return np.fromfile(path, dtype=np.dtype(dtype).newbyteorder("<"))


class Trace:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        with open(self.folder / "trace.json", encoding="utf-8") as file:
            trace = json.load(file)
        self.model = trace["model"]
        self.train = trace["train"]
        self.sync = trace["sync"]
        self.outer = trace["outer"]
        self.steps = self.train["steps"]
        self.tensors = trace["tensors"]
        self.size = trace["arena_size"]
        self.fragments = [slice(f["begin"], f["end"]) for f in trace["fragments"]]
        self.batch_sequences = {w["id"]: w["batch_sequences"] for w in trace["workers"]}
        self.initial = self._read("initial.f32", np.float32)
        headers = [contribution["header"] for contribution in trace["contributions"]]
        self.contributions = {(h["fragment"], h["round"], h["worker_id"]): h for h in headers}
        self.rounds = trace["rounds"]

    def _read(self, name, dtype):
        return read(self.folder / name, dtype)

    def tokens(self, worker):
        """(inputs, targets), each [steps, batch, length]."""
        shape = (self.steps, self.batch_sequences[worker], self.model["sequence_length"])
        return tuple(self._read(f"{kind}.{worker}.i32", np.int32).reshape(shape)
                     for kind in ("inputs", "targets"))

    def local_values(self, worker, when):
        """The local values at every step, [steps, arena]: `when` is "before" or "after" the step's
        sends and merges."""
        return self._read(f"{when}.{worker}.f32", np.float32).reshape(self.steps, self.size)

    def _of_round(self, kind, key, end, dtype):
        return self._read(".".join(map(str, [kind, *key, end])), dtype)

    def delta(self, key):
        """The encoded delta of (fragment, round, worker)."""
        return self._of_round("delta", key, "bin", np.uint8).tobytes()

    def answer(self, key):
        return self._of_round("answer", key, "bin", np.uint8).tobytes()

    def published(self, key):
        return self._of_round("published", key, "f32", np.float32)
