"""Trains one small model with 1 coordinator and with 2, 4 ... that share its fragments.

usage: tests/scale/run --shards 4 [--steps 48] [--kills 0] [--seed 1] [--json]

Real processes on loopback. Reports:
  bit_equal             every round has the hash that one coordinator publishes, with each number of shards
  peak_bytes_per_shard  for each number of coordinators, the largest peak of resident memory of one of them, with a
                        model of --layers blocks (16.8 million parameters each) that is begun, served and saved
  model_bytes           of that model's parameters at 4 bytes
  hash_mismatches       of all comparisons by sites and coordinators
  kills                 SIGKILLs at random moments to lead and shards of the last run, each then served again
"""

import argparse
import json
import os
import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))
from cluster import COORDINATOR, SIGKILL, SIGTERM, wait_until  # noqa: E402
from shards import Sharded  # noqa: E402

SETTINGS = """
train { steps: %d optimizer: MUON seed: %d }
sync { pattern: BALANCED fragments: 8 steps_between_syncs: 8 overlap_steps: 2 mixing: 0.5
       codec_up: INT4 codec_down: INT4 }
membership { start_workers: 2 max_workers: 4 lease_ms: 10000 }
"""
WORKERS = ("east", "west")


def peak_bytes(process):
    try:
        status = pathlib.Path(f"/proc/{process.child.pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines()
                 if line.startswith("VmHWM")), 0)


LARGE = """
model { layers: %d width: 1024 heads: 8 mlp_width: 4096 sequence_length: 32 }
sync { pattern: BALANCED fragments: 8 steps_between_syncs: 8 overlap_steps: 2 codec_up: INT4
       codec_down: INT4 }
"""


def peak(layers, shards):
    """Of the coordinators of a large model that nobody trains: the largest peak, and the model's bytes."""
    with Sharded() as cluster:
        settings = LARGE % layers
        names = names_of(shards)
        flags = [f"--shards={','.join(names)}"] if shards > 1 else []
        config = cluster.folder / "large.textproto"
        config.write_text(settings)
        lead = cluster.start(
            "coordinator.log", COORDINATOR, "serve", f"--run_dir={cluster.folder / 'coordinator'}",
            f"--config={config}", "--listen=127.0.0.1:0", "--http=off", "--durability=none",
            f"--address_file={cluster.folder / 'address'}", *flags)
        wait_until(lambda: (cluster.folder / "address").exists() or lead.child.poll() is not None,
                   "the coordinator listens", 600)
        serving = [lead, *(cluster.start_shard(name, "--durability=none") for name in names[1:])]
        peaks = [peak_bytes(process) for process in serving]
        for process in reversed(serving):
            process.signal(SIGTERM)
        for process in serving:
            if process.child.wait(timeout=600) != 0:
                raise RuntimeError(process.log()[-2000:])
        return max(peaks), 4 * cluster.summary()["parameters"]


def finish(*processes):
    for process in processes:
        if process.wait() != 0:
            raise RuntimeError(process.log()[-2000:])


def names_of(shards):
    return ["lead", *(f"shard-{i}" for i in range(1, shards))]


def run(options, shards, kills=0):
    with Sharded() as cluster:
        settings = SETTINGS % (options.steps, options.seed)
        names = names_of(shards)
        serving = {}
        if shards == 1:
            cluster.start_coordinator(settings)
        else:
            cluster.start_lead(settings, names)
            for name in names[1:]:
                serving[name] = cluster.start_shard(name)
        serving["lead"] = cluster.coordinator
        step_ms = 100 if kills else 0
        workers = [cluster.start_worker(name, f"--min_step_time={step_ms}ms") for name in WORKERS]
        chance = random.Random(options.seed)
        for i in range(kills):
            cluster.wait_for_step(WORKERS[0], (i + 1) * options.steps // (kills + 2))
            time.sleep(chance.random())
            victim = chance.choice(names)
            if serving[victim].child.poll() is not None:
                break  # Training has ended.
            serving[victim].signal(SIGKILL)
            serving[victim].wait()
            serving[victim] = (cluster.restart_lead() if victim == "lead"
                               else cluster.start_shard(victim))
        finish(*workers, *serving.values())
        folders = ["coordinator", *names[1:]]
        mismatches = cluster.summary()["hash_mismatches"]
        return {"published": cluster.published(*folders), "hash_mismatches": mismatches,
                "rounds": cluster.summary()["rounds"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=4, help="coordinators at most, 2 to 8")
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--layers", type=int, default=6,
                        help="of the model whose memory is read; 0: none")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not 2 <= options.shards <= 8:
        parser.error(f"--shards is 2 to 8, not {options.shards}")
    counts = [count for count in (1, 2, 4, 8) if count < options.shards] + [options.shards]
    runs = {count: run(options, count, options.kills if count == options.shards else 0)
            for count in counts}
    whole = runs[1]["published"]
    peaks = {count: peak(options.layers, count) for count in counts} if options.layers else {}
    report = {
        "shards": counts,
        "steps": options.steps,
        "kills": options.kills,
        "load_average": os.getloadavg()[0],
        "rounds": runs[1]["rounds"],
        "bit_equal": len(whole) > 0 and all(r["published"] == whole for r in runs.values()),
        "model_bytes": peaks[1][1] if peaks else 0,
        "peak_bytes_per_shard": {count: most for count, (most, _) in peaks.items()},
        "hash_mismatches": sum(r["hash_mismatches"] for r in runs.values()),
    }
    if options.json:
        print(json.dumps(report))
    else:
        for key, value in report.items():
            print(f"{key}: {value}")
    return 0 if report["bit_equal"] and report["hash_mismatches"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
