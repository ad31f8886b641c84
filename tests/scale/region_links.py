"""Trains over emulated links: regions of near sites behind long, thin links, beside flat sites.

usage: tests/scale/run --links [--regions 2x4] [--step_ms 800] [--json]

The links inside a region have a round trip of 10 ms, those between a region and the hub 100 ms and a
quarter of the rate. That quarter is --bound_factor times the least rate at which one site's bytes keep
up with training, as tests/wan/run --training has it. The flat run has the same links: its sites reach
the hub through their region's place, and share its link. Needs root and /dev/net/tun.
Exit status 1 if any hash differs. Reports, each a share of the time that sites compute:
  computing_share, flat_computing_share        measured, after the first rounds
  hash_mismatches                              of all comparisons by sites, regions and hubs
"""

import argparse
import contextlib
import dataclasses
import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "wan"))
from exchange import Run  # noqa: E402
from network import LinkSettings, Network, skip_if_impossible  # noqa: E402
from processes import Failed, working_folder  # noqa: E402
from cluster import hashes  # noqa: E402
from regions import layout, tell  # noqa: E402
from training import Coordinator, json_lines, make_data, train_at  # noqa: E402
from utilization import MODELS, PERIOD, bytes_per_sync, steady  # noqa: E402

JOINING_MBIT = 100
SKIPPED_PERIODS = 2
INSIDE_RTT_MS = 10
BETWEEN_RTT_MS = 100
CONFIG = """
run_name: "tree"
model {{ preset: "{model}" sequence_length: {tokens} }}
train {{ steps: {steps} batch_sequences: 1 optimizer: ADAMW seed: 1 evaluation_sequences: 1 }}
sync {{ pattern: BALANCED fragments: {fragments} steps_between_syncs: {period}
       overlap_steps: {overlap} mixing: 0.5 codec_up: INT4 codec_down: INT4 }}
membership {{ start_workers: {sites} max_workers: {sites} quorum: {sites} lease_ms: 60000 }}
"""


class Links:
    """The hub's star of regions, and every region's star of sites. Use as a context manager."""

    def __init__(self, options):
        program = options.bin / "causeway-wan-link"
        self._inside = LinkSettings(rate_mbit=4 * options.rate_mbit, rtt_ms=INSIDE_RTT_MS)
        self._between = LinkSettings(rate_mbit=options.rate_mbit, rtt_ms=BETWEEN_RTT_MS)
        # Nobody waits for the state that a site begins with: it is no part of the measurement.
        inside = dataclasses.replace(self._inside, rate_mbit=JOINING_MBIT)
        between = dataclasses.replace(self._between, rate_mbit=JOINING_MBIT)
        with contextlib.ExitStack() as stack:
            self.hub = stack.enter_context(Network(program, [between] * options.count))
            self.regions = [stack.enter_context(Network(program, [inside] * options.sites,
                                                        above=self.hub, index=index))
                            for index in range(options.count)]
            self._stack = stack.pop_all()

    def become_thin(self):
        for network, settings in [(self.hub, self._between),
                                  *((region, self._inside) for region in self.regions)]:
            for link in network.links:
                link.change(settings)

    def sites(self, coordinators):
        return [(place, coordinator) for region, coordinator in zip(self.regions, coordinators)
                for place in region.workers]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()


def start_region(run, network, index, sites):
    name = f"region-{index}"
    run_dir, address = run.folder / name, run.folder / f"{name}.address"
    region = run.start(
        network.coordinator, name, run.bin / "causeway-coordinator", "serve", f"--run_dir={run_dir}",
        f"--parent={run.address}", f"--region_id={name}", f"--sites={sites}",
        f"--listen={network.address}:0", f"--address_file={address}", "--durability=none",
        "--snapshot_every_rounds=2", "--exit_when_finished", "--http=off", *run.flags)
    region.wait_until(address.exists, "it listens")
    return region, Coordinator(address.read_text().strip(), run_dir)


def model_of(options):
    return next(model for model in MODELS if model.preset == options.model)


def shares(workers, periods):
    """What the workers' steps say, after the first periods."""
    skipped = min(SKIPPED_PERIODS, periods - 1) * PERIOD
    each = [steady(worker, skipped) for worker in workers]
    return {"computing_share": statistics.mean(one["utilization"] for one in each),
            "least_computing_share": min(one["utilization"] for one in each),
            "step_ms": statistics.mean(one["step_ms"] for one in each)}


def train(options, periods, regions):
    """One training, as a tree or flat. Returns the share of computing and the hashes that differ."""
    model = model_of(options)
    config = CONFIG.format(model=model.preset, tokens=model.tokens, steps=periods * PERIOD,
                           fragments=model.fragments, overlap=model.overlap, period=PERIOD,
                           sites=options.count * options.sites)
    with Links(options) as links, working_folder() as folder, \
            Run(links.hub, options.bin, folder, config) as run:
        hub = Coordinator(run.address, run.folder / "run")
        coordinators, processes = [hub] * options.count, []
        if regions:
            started = [start_region(run, network, index, options.sites)
                       for index, network in enumerate(links.regions)]
            processes, coordinators = (list(part) for part in zip(*started))
        workers = train_at(run, links.sites(coordinators), make_data(options.bin, folder),
                           [f"--min_step_time={options.step_ms}ms", "--checkpoint_interval=0"],
                           timeout_s=3600, once_training=links.become_thin)
        for process in processes:
            process.wait(120)
        published, differ = hashes(hub.run_dir), 0
        for region in {hub, *coordinators}:
            below = hashes(region.run_dir)
            differ += sum(published.get(key) != below.get(key)
                          for key in published.keys() | below.keys())
            differ += sum(line["event"] == "hash_mismatch"
                          for line in json_lines(region.run_dir / "events.jsonl"))
    return shares(workers, periods) | {"hash_mismatches": differ, "rounds": len(published)}


def measure(options, progress):
    # The rate at which one site's bytes just keep up.
    size, parameters = bytes_per_sync(options, model_of(options))
    bound_mbit = size * 8e-6 / (PERIOD * options.step_ms / 1000)
    options.rate_mbit = round(options.bound_factor * bound_mbit, 4)
    progress(f"regions of {options.sites} sites, {4 * options.rate_mbit:.3f} Mbit/s inside, "
             f"{options.rate_mbit:.3f} Mbit/s to the hub ...")
    tree = train(options, options.periods, regions=True)
    progress(f"    computing {100 * tree['computing_share']:.2f} % of the time; the same links, flat ...")
    flat = train(options, options.flat_periods, regions=False)
    progress(f"    computing {100 * flat['computing_share']:.2f} % of the time")
    return {
        "regions": f"{options.count}x{options.sites}", "step_ms": options.step_ms, "parameters": parameters,
        "bound_mbit": bound_mbit, "between_mbit": options.rate_mbit,
        "inside_mbit": 4 * options.rate_mbit, "load_average": os.getloadavg()[0],
        "computing_share": tree["computing_share"], "flat_computing_share": flat["computing_share"],
        "hash_mismatches": tree["hash_mismatches"] + flat["hash_mismatches"],
        "tree": tree, "flat": flat,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", action="store_true", help="what this program is for")
    parser.add_argument("--step_ms", type=int, default=800, help="least time of an inner step")
    parser.add_argument("--model", choices=[model.preset for model in MODELS], default="tiny-1m")
    parser.add_argument("--bound_factor", type=float, default=1.25)
    parser.add_argument("--periods", type=int, default=6, help=f"of {PERIOD} steps")
    parser.add_argument("--bin", type=Path,
                        default=Path(os.environ.get("CAUSEWAY_BIN", "build/release/bin")))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--regions", type=layout, default="2x4", help="REGIONSxSITES")
    parser.add_argument("--flat_periods", type=int, default=3)
    options = parser.parse_args()
    options.count, options.sites = options.regions
    if options.count > 100:
        parser.error("--regions: a hub's links reach 100 regions")
    options.congestion = None
    options.bin = options.bin.resolve()
    skip_if_impossible()
    try:
        found = measure(options, lambda line: print(line, file=sys.stderr, flush=True))
    except Failed as failure:
        print(f"tests/scale/run: {failure}", file=sys.stderr)
        return 1
    tell(found, options.json)
    return 0 if found["hash_mismatches"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
