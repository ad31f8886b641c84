"""What the measurements over emulated links have in common (region_links.py, shard_links.py)."""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "wan"))
from network import skip_if_impossible  # noqa: E402
from processes import Failed  # noqa: E402
from utilization import MODELS, PERIOD, bytes_per_sync, steady  # noqa: E402

JOINING_MBIT = 100
SKIPPED_PERIODS = 2


def make_parser(description, step_ms, bound_factor, periods):
    """The flags of both. The arguments after the first are defaults."""
    parser = argparse.ArgumentParser(description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", action="store_true", help="what this program is for")
    parser.add_argument("--step_ms", type=int, default=step_ms, help="least time of an inner step")
    parser.add_argument("--model", choices=[model.preset for model in MODELS], default="tiny-1m")
    parser.add_argument("--bound_factor", type=float, default=bound_factor)
    parser.add_argument("--periods", type=int, default=periods, help=f"of {PERIOD} steps")
    parser.add_argument("--bin", type=Path,
                        default=Path(os.environ.get("CAUSEWAY_BIN", "build/release/bin")))
    parser.add_argument("--json", action="store_true")
    return parser


def model_of(options):
    return next(model for model in MODELS if model.preset == options.model)


def least_rate(options):
    """The Mbit/s at which one site's bytes just keep up, and the model's parameters."""
    size, parameters = bytes_per_sync(options, model_of(options))
    return size * 8e-6 / (PERIOD * options.step_ms / 1000), parameters


def shares(workers, periods):
    """What the workers' steps say, after the first periods."""
    skipped = min(SKIPPED_PERIODS, periods - 1) * PERIOD
    each = [steady(worker, skipped) for worker in workers]
    return {"computing_share": statistics.mean(one["utilization"] for one in each),
            "least_computing_share": min(one["utilization"] for one in each),
            "step_ms": statistics.mean(one["step_ms"] for one in each)}


def report(options, measure):
    """Prints what measure(options, progress) returns. Returns the status to end with."""
    options.congestion = None
    options.bin = options.bin.resolve()
    skip_if_impossible()
    try:
        found = measure(options, lambda line: print(line, file=sys.stderr, flush=True))
    except Failed as failure:
        print(f"tests/scale/run: {failure}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(found))
    else:
        for key, value in found.items():
            print(f"{key}: {value}")
    return 0 if found["hash_mismatches"] == 0 else 1
