"""Trains one small model as R regions of N sites, and as R * N sites under one coordinator.

usage: tests/scale/run --regions 2x4 [--steps 60] [--seeds 1] [--step_ms 0] [--json]

Exit status 1 if any hash differs, or if a region sends its parent more than one site does.
Real processes on loopback. Reports:
  hash_mismatches   of all comparisons by sites, regions and hubs; the recorded hashes of every round
                    of hub and regions included
  hub_bytes_up      payload that reached the hub of the tree
  flat_bytes_up     payload that reached the coordinator of the flat run
  computing_share   of the sites of the tree: computing / (computing + waiting); flat_computing_share
                    likewise
  eval_loss, flat_eval_loss   held-out loss of the published parameters, one for each seed
"""

import argparse
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))
from cluster import SYNC  # noqa: E402
from regions import Tree, layout, tell  # noqa: E402

SETTINGS = (SYNC + "train { steps: %d seed: %d optimizer: MUON } "
            "membership { start_workers: %d max_workers: %d lease_ms: 30000 } ")


def finish(tree, processes):
    for process in processes:
        if process.wait() != 0:
            raise RuntimeError(process.log()[-2000:])
    if tree.coordinator.wait() != 0:
        raise RuntimeError(tree.coordinator.log()[-2000:])


def figures(tree, sites):
    summaries = [tree.summary(site) for site in sites]
    computing = sum(s["compute_seconds"] for s in summaries)
    waiting = sum(s["blocked_seconds"] for s in summaries)
    return {
        "bytes_up": tree.summary()["bytes_up"],
        "computing_share": computing / max(1e-9, computing + waiting),
        "eval_loss": next(s["eval_loss"] for s in summaries if "eval_loss" in s),
    }


def run_tree(options, regions, sites, seed):
    total = regions * sites
    with Tree() as tree:
        tree.start_coordinator(SETTINGS % (options.steps, seed, total, total))
        names = [f"region-{r}" for r in range(regions)]
        processes = [tree.start_region(name, sites) for name in names]
        workers = []
        for r, name in enumerate(names):
            for i in range(sites):
                worker = f"site-{r * sites + i}"
                workers.append(worker)
                processes.append(tree.start_worker(
                    worker, f"--min_step_time={options.step_ms}ms",
                    address=tree.region_address(name)))
        finish(tree, processes)
        result = figures(tree, workers)
        result["hash_mismatches"] = tree.summary()["hash_mismatches"]
        published = tree.published()
        for name in names:
            result["hash_mismatches"] += tree.summary(name)["hash_mismatches"]
            below = tree.published(name)
            result["hash_mismatches"] += sum(
                published.get(key) != below.get(key) for key in published.keys() | below.keys())
        result["rounds"] = tree.summary()["rounds"]
        return result


def run_flat(options, total, seed):
    with Tree() as tree:
        tree.start_coordinator(SETTINGS % (options.steps, seed, total, total))
        workers = [f"site-{i}" for i in range(total)]
        finish(tree, [tree.start_worker(worker, f"--min_step_time={options.step_ms}ms")
                      for worker in workers])
        result = figures(tree, workers)
        result["hash_mismatches"] = tree.summary()["hash_mismatches"]
        return result


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--regions", type=layout, default="2x4", help="REGIONSxSITES")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--step_ms", type=int, default=0, help="least time of an inner step")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    regions, sites = options.regions
    trees, flats = [], []
    for seed in range(1, options.seeds + 1):
        trees.append(run_tree(options, regions, sites, seed))
        flats.append(run_flat(options, regions * sites, seed))
    report = {
        "regions": f"{regions}x{sites}",
        "steps": options.steps,
        "load_average": os.getloadavg()[0],
        "rounds": trees[0]["rounds"],
        "hash_mismatches": sum(r["hash_mismatches"] for r in trees + flats),
        "hub_bytes_up": trees[0]["bytes_up"],
        "flat_bytes_up": flats[0]["bytes_up"],
        "computing_share": min(r["computing_share"] for r in trees),
        "flat_computing_share": min(r["computing_share"] for r in flats),
        "eval_loss": [r["eval_loss"] for r in trees],
        "flat_eval_loss": [r["eval_loss"] for r in flats],
    }
    tell(report, options.json)
    # One site's bytes for a whole region.
    as_one = report["hub_bytes_up"] * sites == report["flat_bytes_up"]
    return 0 if report["hash_mismatches"] == 0 and as_one else 1


if __name__ == "__main__":
    sys.exit(main())
