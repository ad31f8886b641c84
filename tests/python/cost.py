"""Measures what being a site costs a PyTorch trainer.

    tests/python/cost [--json] [--steps N] [--step_s S] [--layers N --width N] [--sites N]

Trainers of GPT-2's shape (124M parameters) are sites of a run with H 30 and 8 fragments, four bits both
ways. A step is a sleep and a real step of AdamW on constant gradients: `step` in the result says so.
Of each figure the largest of all sites:

  training_thread_share     of the wall time that the training thread spends in Causeway. Other work on
                            the machine counts, so training_thread_cpu_seconds_per_step stands beside it
  step_share_idle, step_share_due
                            the same of steps at which nothing was sent or merged, and of the others;
                            step_seconds_idle and _due: the median of what one spends in Causeway,
                            step_count_idle and _due: how many there were;
                            empty_call_seconds: what the least call into the library takes there (median)
  host_bytes_per_parameter  of what the process of a site occupies more than before it joined, by its
                            resident memory between steps (median); `_peak` the most, `_by_account`
                            the arena and the published values

Exit status 77 if there is no Python with torch.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))

from cluster import BIN, Cluster  # noqa: E402

CONFIG = """\
run_name: "cost"
train {{ steps: {steps} }}
sync {{
  pattern: BALANCED
  fragments: {fragments}
  steps_between_syncs: {distance}
  overlap_steps: {overlap}
  mixing: 0.5
  codec_up: INT4
  codec_down: INT4
}}
outer {{ optimizer: NESTEROV learning_rate: 0.7 momentum: 0.6 }}
membership {{ start_workers: {sites} max_workers: {sites} }}
"""
FRAGMENTS, DISTANCE, OVERLAP = 8, 30, 4
PATIENCE_S = 1200


def parse_arguments():
    parser = argparse.ArgumentParser(prog="tests/python/cost", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch_python", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")
    parser.add_argument("--steps", type=int, default=45)
    parser.add_argument("--step_s", type=float, default=1.0)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--sites", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.steps < DISTANCE:
        parser.error(f"--steps must be at least {DISTANCE}, the distance of two syncs")
    return arguments


def train(arguments):
    """A run that gets its model from the first site. Returns what each site measured."""
    with Cluster() as cluster:
        coordinator = cluster.start_coordinator(
            CONFIG.format(steps=arguments.steps, fragments=FRAGMENTS, distance=DISTANCE, overlap=OVERLAP,
                          sites=arguments.sites),
            "--initial=first-site", "--http=off", "--durability=none", model="")
        names = [f"site-{index}" for index in range(arguments.sites)]
        variables = {"PYTHONPATH": str(ROOT / "worker" / "python"), "OMP_NUM_THREADS": "1",
                     "CAUSEWAY_SITE_LIBRARY": str(BIN.resolve() / "libcauseway_site.so")}
        trainers = [cluster.start(
            f"{name}.log", arguments.torch_python, "-B", Path(__file__).with_name("cost_site.py"),
            f"--coordinator={cluster.address}", f"--id={name}", f"--layers={arguments.layers}",
            f"--width={arguments.width}", f"--step_s={arguments.step_s}", f"--out={cluster.folder / name}",
            variables=variables) for name in names]
        for process in (*trainers, coordinator):
            if process.child.wait(PATIENCE_S) != 0:
                sys.exit(f"tests/python/cost: {process.log_path.name}:\n{process.log()[-2000:]}")
        mismatches = cluster.summary()["hash_mismatches"]
        if mismatches:
            sys.exit(f"tests/python/cost: {mismatches} hashes were not equal")
        return [json.loads((cluster.folder / name).read_text(encoding="utf-8")) for name in names]


def main():
    arguments = parse_arguments()
    load, begin = os.getloadavg()[0], time.monotonic()
    sites = train(arguments)
    result = {
        "step": f"a sleep and a real AdamW step on constant gradients, {arguments.step_s} s together",
        "steps_between_syncs": DISTANCE, "overlap_steps": OVERLAP, "fragments": FRAGMENTS,
        "sites": arguments.sites, "cores": os.cpu_count(), "load_average_before": load,
        "load_average_after": os.getloadavg()[0], "elapsed_seconds": round(time.monotonic() - begin, 1),
        **{name: max(site[name] for site in sites) for name in sites[0]},
    }
    print(json.dumps(result) if arguments.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
