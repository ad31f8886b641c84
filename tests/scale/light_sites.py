"""Measures a hub with many sites that exchange deltas and train nothing, in regions and without.

usage: tests/scale/run --light 8x8 [--rounds 20] [--million_values 4] [--json]

Real processes on loopback: causeway-wan-exchange for a site. Four runs with the same fragments and
rounds: R sites at the hub, R regions of N sites, R sites at the hub that take as long for a round as
the regions did, R * N sites at the hub. Of each:
  hub_cpu_ms_per_round   processor time of the hub's process, from the first round on
  seconds_per_round      of the clock, with all processes on this machine
  hub_peak_mib           the most memory that it had (VmHWM)
  hub_bytes_up           payload that reached it
Every coordinator publishes the same number of rounds, and the tiers the same hashes: exit status 1
otherwise. Run folders lie in memory where there is room: disks are not what is measured.
"""

import argparse
import os
import pathlib
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))
from cluster import BIN, wait_until  # noqa: E402
from regions import Tree, layout, tell  # noqa: E402

WIDTH = 256
FRAGMENTS = 4
PUSHES = 2  # Pushes of one site at once.
CONFIG = """
run_name: "light"
model {{ vocabulary_size: {vocabulary} layers: 1 width: 256 heads: 4 mlp_width: 256 }}
train {{ steps: 1000000 }}
sync {{ pattern: BALANCED fragments: {fragments} steps_between_syncs: 1000
       codec_up: INT4 codec_down: INT4 }}
membership {{ start_workers: {sites} max_workers: {sites} quorum: {sites} lease_ms: 120000 }}
"""
PATIENCE_S = 600


def config_text(million_values, sites):
    vocabulary = max(256, int(million_values * 1e6 - 7 * WIDTH * WIDTH) // WIDTH)
    return CONFIG.format(vocabulary=vocabulary, fragments=FRAGMENTS, sites=sites)


def peak_mib(process):
    status = pathlib.Path(f"/proc/{process.child.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


def start_site(tree, name, rounds, address, push_every_s):
    return tree.start(f"{name}.log", BIN / "causeway-wan-exchange", f"--coordinator={address}",
                      f"--id={name}", f"--rounds={rounds}", f"--pushes={PUSHES}", "--pulls=2",
                      f"--push_every_s={push_every_s}", "--insecure")


def run(options, at_hub, regions, sites, round_s=0.0):
    """`at_hub` sites at the hub, and `regions` of `sites` each; no faster than a round in round_s."""
    total = at_hub + regions * sites
    wanted = options.rounds * FRAGMENTS
    with Tree() as tree:
        # It stays after the last round, to be asked what it has cost.
        tree.start_coordinator(config_text(options.million_values, total), "--noexit_when_finished", "--http=off",
                               "--durability=none", model="")
        names = [f"region-{r}" for r in range(regions)]
        coordinators = [tree.start_region(name, sites, "--durability=none") for name in names]
        processes = [start_site(tree, f"site-{i}", options.rounds, tree.address, PUSHES * round_s)
                     for i in range(at_hub)]
        for name in names:
            processes += [start_site(tree, f"{name}-{i}", options.rounds, tree.region_address(name), 0)
                          for i in range(sites)]

        def failed():
            return next((process for process in [tree.coordinator, *coordinators, *processes]
                         if process.child.poll() not in (None, 0)), None)

        def published(count):
            if (process := failed()) is not None:
                raise RuntimeError(process.log()[-2000:])
            return len(tree.rounds()) >= count

        # The first round of each fragment also waits for everybody to begin.
        wait_until(lambda: published(FRAGMENTS), "the first rounds are published", PATIENCE_S)
        begun, cpu, since = len(tree.rounds()), tree.coordinator.cpu_s(), time.monotonic()
        wait_until(lambda: published(wanted), "all rounds are published", PATIENCE_S)
        cpu = tree.coordinator.cpu_s() - cpu
        seconds = time.monotonic() - since
        peak = peak_mib(tree.coordinator)
        for process in [*processes, *coordinators]:
            if process.wait() != 0:
                raise RuntimeError(process.log()[-2000:])
        rows = tree.rounds()
        hub = tree.published()
        below = [tree.published(name) for name in names]
        return {
            "members": at_hub + regions,
            "sites": total,
            "rounds": len(rows),
            "hub_cpu_ms_per_round": round(1000 * cpu / max(1, wanted - begun), 2),
            "seconds_per_round": round(seconds / max(1, wanted - begun), 4),
            "hub_peak_mib": round(peak, 1),
            "hub_bytes_up": sum(row["bytes_in"] for row in rows),
            "equal_hashes": all(one == hub for one in below),
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--light", type=layout, default="8x8", metavar="RxN", help="R regions of N sites")
    parser.add_argument("--rounds", type=int, default=20, help="of every fragment")
    parser.add_argument("--million_values", type=float, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    regions, sites = options.light
    report = {"layout": f"{regions}x{sites}", "fragments": FRAGMENTS,
              "million_values": options.million_values,
              "load_average_before": os.getloadavg()[0],
              "flat_few": run(options, regions, 0, 0),
              "tree": run(options, 0, regions, sites)}
    report["flat_few_slow"] = run(options, regions, 0, 0, report["tree"]["seconds_per_round"])
    report["flat_all"] = run(options, regions * sites, 0, 0)
    tell(report, options.json)
    runs = [report[key] for key in ("flat_few", "tree", "flat_few_slow", "flat_all")]
    whole = all(entry["rounds"] == options.rounds * FRAGMENTS for entry in runs)
    as_few = report["tree"]["hub_bytes_up"] == report["flat_few"]["hub_bytes_up"]
    return 0 if whole and as_few and report["tree"]["equal_hashes"] else 1


if __name__ == "__main__":
    sys.exit(main())
