"""Trains one small model with 1 coordinator and with 2, 4 ... that share its fragments.

usage: tests/scale/run --shards 4 [--steps 48] [--kills 0] [--layers 6] [--million_values 64] [--seed 1] [--json]

Real processes on loopback. Reports:
  bit_equal             every round has the hash that one coordinator publishes, with each number of shards
  peak_bytes_per_shard  for each number of coordinators, the largest peak of resident memory of one of them, with a
                        model of --layers blocks (16.8 million parameters each) that is begun and served; null
                        where that does not fit this machine. A lead without fragments has their sessions, and its
                        shards are begun one after the other: more than one need not fit
  model_bytes           of that model's parameters at 4 bytes
  exchange              for each number of coordinators, two sites that exchange --million_values values, in eight
                        fragments with int4 both ways, and train nothing, as fast as they can:
                        seconds_per_round of all fragments; values_per_s merged by all; of each coordinator its
                        cpu_s_per_round, bytes_per_round that reach it, and peak_bytes; bit_equal as above
  hash_mismatches       of all comparisons by sites and coordinators
  kills                 SIGKILLs at random moments to lead and shards of the last run, each then served again
"""

import argparse
import json
import os
import pathlib
import random
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))
from cluster import BIN, COORDINATOR, SIGKILL, SIGTERM, json_lines, wait_until  # noqa: E402
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


FRAGMENTS = 8
PATIENCE_S = 900
# Two sites that exchange deltas and train nothing.
LIGHT = """
model { vocabulary_size: %d layers: 1 width: 256 heads: 4 mlp_width: 256 }
train { steps: 1000000 }
sync { pattern: BALANCED fragments: 8 steps_between_syncs: 1000 codec_up: INT4 codec_down: INT4 }
membership { start_workers: 2 max_workers: 2 quorum: 2 lease_ms: 120000 }
"""
LARGE = """
model { layers: %d width: 1024 heads: 8 mlp_width: 4096 sequence_length: 32 }
sync { pattern: BALANCED fragments: 8 steps_between_syncs: 8 overlap_steps: 2 codec_up: INT4
       codec_down: INT4 }
"""


BYTES_PER_PARAMETER = 18  # That one coordinator takes, with room to spare.


def parameters(layers):
    return layers * 16.8e6


def available_bytes():
    found = re.search(r"MemAvailable:\s+(\d+) kB", pathlib.Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024


def serve_alone(cluster, flags):
    """The lead, or the only coordinator, of a run with that configuration."""
    lead = cluster.start(
        "coordinator.log", COORDINATOR, "serve", f"--run_dir={cluster.folder / 'coordinator'}",
        f"--config={cluster.folder / 'run.textproto'}", "--listen=127.0.0.1:0", "--http=off",
        "--durability=none", f"--address_file={cluster.folder / 'address'}", *flags)
    wait_until(lambda: (cluster.folder / "address").exists() or lead.child.poll() is not None,
               "the coordinator listens", PATIENCE_S)
    if lead.child.poll() is not None:
        raise RuntimeError(lead.log()[-2000:])
    return lead


def end(process):
    process.signal(SIGTERM)
    if process.child.wait(timeout=PATIENCE_S) != 0:
        raise RuntimeError(process.log()[-2000:])


def peak(layers, shards):
    """Of the coordinators of a large model that nobody trains: the largest peak; None if there is no room."""
    if BYTES_PER_PARAMETER * parameters(layers) / shards > available_bytes():
        return None
    with Sharded() as cluster:
        (cluster.folder / "run.textproto").write_text(LARGE % layers)
        names = [f"shard-{i}" for i in range(shards)] if shards > 1 else []
        lead = serve_alone(cluster, [f"--shards={','.join(names)}"] if names else [])
        peaks = [peak_bytes(lead)]
        for name in names:
            shard = cluster.start_shard(name, "--durability=none", patience_s=PATIENCE_S)
            peaks.append(peak_bytes(shard))
            end(shard)
        end(lead)
        return max(peaks)


def cpu_s(process):
    fields = pathlib.Path(f"/proc/{process.child.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def exchange(options, shards):
    """What coordinators take for rounds of sites that train nothing."""
    with Sharded() as cluster:
        vocabulary = int(options.million_values * 1e6 / 256)
        (cluster.folder / "run.textproto").write_text(LIGHT % vocabulary)
        names = names_of(shards)
        serving = {"lead": serve_alone(cluster, [f"--shards={','.join(names)}"] if shards > 1 else [])}
        for name in names[1:]:
            serving[name] = cluster.start_shard(name, "--durability=none", patience_s=PATIENCE_S)
        folders = {name: "coordinator" if name == "lead" else name for name in names}
        sites = [cluster.start(f"{name}.log", BIN / "causeway-wan-exchange",
                               f"--coordinator={cluster.address}", f"--id={name}",
                               f"--rounds={options.rounds}", "--pushes=4", "--pulls=4", "--insecure")
                 for name in WORKERS]

        def published(count):
            for process in [*serving.values(), *sites]:
                if process.child.poll() not in (None, 0):
                    raise RuntimeError(process.log()[-2000:])
            return len(cluster.published(*folders.values())) >= count

        # The first round of each fragment also waits for everybody to begin.
        wait_until(lambda: published(FRAGMENTS), "the first rounds are published", PATIENCE_S)
        since, begun = time.monotonic(), len(cluster.published(*folders.values()))
        cpu = {name: cpu_s(process) for name, process in serving.items()}
        wanted = options.rounds * FRAGMENTS
        wait_until(lambda: published(wanted), "all rounds are published", PATIENCE_S)
        seconds = time.monotonic() - since
        rounds = (wanted - begun) / FRAGMENTS
        took = {name: cpu_s(process) - cpu[name] for name, process in serving.items()}
        peaks = {name: peak_bytes(process) for name, process in serving.items()}
        finish(*sites)
        for process in reversed(serving.values()):
            end(process)
        values = cluster.summary()["parameters"]
        arrived = {name: sum(row["bytes_in"] for row in json_lines(cluster.folder / folder / "rounds.jsonl"))
                   for name, folder in folders.items()}
        return {
            "published": cluster.published(*folders.values()),
            "seconds_per_round": round(seconds / rounds, 3),
            "values_per_s": round(values * rounds / seconds),
            "cpu_s_per_round": {name: round(took[name] / rounds, 3) for name in names},
            "bytes_per_round": {name: arrived[name] // options.rounds for name in names},
            "peak_bytes": peaks,
        }


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
    parser.add_argument("--million_values", type=float, default=64,
                        help="that sites exchange; 0: none do")
    parser.add_argument("--rounds", type=int, default=10, help="of every fragment that they exchange")
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
    light = ({count: exchange(options, count) for count in counts} if options.million_values else {})
    light_bits = [entry.pop("published") for entry in light.values()]
    report = {
        "shards": counts,
        "steps": options.steps,
        "kills": options.kills,
        "load_average": os.getloadavg()[0],
        "rounds": runs[1]["rounds"],
        "bit_equal": (len(whole) > 0 and all(r["published"] == whole for r in runs.values())
                      and all(bits == light_bits[0] for bits in light_bits)),
        "model_bytes": int(4 * parameters(options.layers)),
        "peak_bytes_per_shard": peaks,
        "million_values": options.million_values,
        "exchange": light,
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
