#!/usr/bin/env python3
"""Reads a worker's curves with TensorBoard's own reader and compares them with its metrics.jsonl.

usage: tensorboard_curves.py OUT CURVES

OUT is the worker's --out, CURVES the subfolder of its name in --tensorboard. Needs PyPI's
tensorboard, so it is not part of tests/run. Exits 1 if a curve is not what the worker reported.
"""
import json
import pathlib
import sys

from tensorboard.backend.event_processing import event_accumulator


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    out, curves = sys.argv[1:]
    reader = event_accumulator.EventAccumulator(curves, size_guidance={"scalars": 0})
    reader.Reload()
    tags = reader.Tags()["scalars"]
    lines = [json.loads(line)
             for line in (pathlib.Path(out) / "metrics.jsonl").read_text().splitlines()]
    reported = {"train/loss": {}, "eval/loss": {}}
    for line in lines:
        if line["kind"] == "step":
            reported["train/loss"][line["step"]] = line["train_loss"]
        elif line["kind"] == "eval":
            reported["eval/loss"][line["step"]] = line["eval_loss"]
    wrong = 0
    for tag, values in reported.items():
        if not values:
            continue
        read = {event.step: event.value for event in reader.Scalars(tag)} if tag in tags else {}
        same = read.keys() == values.keys() and all(
            abs(read[step] - value) <= 1e-6 * abs(value) for step, value in values.items())
        wrong += not same
        print(f"{tag}: {len(read)} points, {'as reported' if same else 'NOT what was reported'}")
    print("curves:", ", ".join(sorted(tags)))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
