"""Trains over emulated links: coordinators with thin links of their own share the fragments of a run.

usage: tests/scale/run --shards 4 --links [--sites 4] [--step_ms 400] [--model small-10m] [--json]

Every site has a link with a round trip of 100 ms and four times the least rate at which its bytes keep up
with training, as tests/wan/run --training has it. Every coordinator has a link of 2 ms, whose rate is
--bound_factor times what its share of all sites' bytes needs. The same run with one coordinator on such a
link shows what the others are for. Needs root and /dev/net/tun.
Exit status 1 if any hash differs. Reports, each a share of the time that sites compute:
  computing_share, single_computing_share                        measured, after the first rounds
  simulated_computing_share, simulated_single_computing_share    by causewayctl simulate --shards
  hash_mismatches   of all comparisons by sites, and of rounds between the two runs
"""

import contextlib
import dataclasses
import os
import sys
from pathlib import Path

import over_links
from over_links import JOINING_MBIT

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "wan"))
from exchange import Run  # noqa: E402
from network import LinkSettings, Network  # noqa: E402
from processes import working_folder  # noqa: E402
from training import Coordinator, json_lines, make_data, train_at  # noqa: E402
from utilization import PERIOD  # noqa: E402

SITE_RTT_MS = 100
COORDINATOR_RTT_MS = 2
# Beside the values that the least rate counts: of an object (docs/simulator.md), and of every segment of
# TCP its headers, and the acknowledgement of one that comes the other way.
OBJECT_BYTES = 2500
PAYLOAD_SHARE = 1448 / (1500 + 52)
CONFIG = """
run_name: "shards"
model {{ preset: "{model}" sequence_length: {tokens} }}
train {{ steps: {steps} batch_sequences: 1 optimizer: ADAMW seed: 1 evaluation_sequences: 1
        warmup_steps: 0 final_learning_rate_fraction: 1 }}  # The same steps, however many there are.
sync {{ pattern: BALANCED fragments: {fragments} steps_between_syncs: {period}
       overlap_steps: {overlap} mixing: 0.5 codec_up: INT4 codec_down: INT4 }}
membership {{ start_workers: {sites} max_workers: {sites} quorum: {sites} lease_ms: 60000 }}
"""


@dataclasses.dataclass
class LeadsPlace:
    """The star as its lead sees it (Run)."""

    coordinator: object
    address: str
    congestion: str | None = None


class Links:
    """A star: sites and coordinators around a router. Use as a context manager."""

    def __init__(self, options, coordinators):
        self._thin = ([LinkSettings(rate_mbit=options.site_mbit, rtt_ms=SITE_RTT_MS)] * options.sites
                      + [LinkSettings(rate_mbit=options.coordinator_mbit, rtt_ms=COORDINATOR_RTT_MS,
                                     queue_bytes=options.queue_bytes)] * coordinators)
        # Nobody waits for the state that a site begins with: it is no part of the measurement.
        wide = [dataclasses.replace(one, rate_mbit=JOINING_MBIT) for one in self._thin]
        with contextlib.ExitStack() as stack:
            self._network = stack.enter_context(Network(options.bin / "causeway-wan-link", wide))
            self._network.coordinator.run("sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
            for place in self._network.workers:
                place.run("ip", "route", "add", "10.77.1.0/24", "via", self._network.address, "dev",
                          "wan", "onlink")
            self._stack = stack.pop_all()
        self.sites = self._network.workers[:options.sites]
        self.coordinators = [LeadsPlace(place, f"10.77.1.{options.sites + number + 1}")
                             for number, place in
                             enumerate(self._network.workers[options.sites:])]

    def become_thin(self):
        for link, settings in zip(self._network.links, self._thin):
            link.change(settings)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()


def start_shard(run, place, name):
    address = run.folder / f"{name}.address"
    shard = run.start(
        place.coordinator, name, run.bin / "causeway-coordinator", "serve",
        f"--run_dir={run.folder / name}", f"--lead={run.address}", f"--shard={name}",
        f"--listen={place.address}:0", f"--address_file={address}", "--durability=none",
        "--snapshot_every_rounds=2", "--http=off", *run.flags)
    shard.wait_until(address.exists, "it listens")


def train(options, coordinators, periods):
    """One training. Returns the share of computing, and the published hashes."""
    model = over_links.model_of(options)
    config = CONFIG.format(model=model.preset, tokens=model.tokens, steps=periods * PERIOD,
                           fragments=model.fragments, overlap=model.overlap, period=PERIOD,
                           sites=options.sites)
    names = ["lead", *(f"shard-{number}" for number in range(1, coordinators))]
    flags = [f"--shards={','.join(names)}"] if coordinators > 1 else []
    with Links(options, coordinators) as links, working_folder() as folder, \
            Run(links.coordinators[0], options.bin, folder, config, flags) as run:
        for name, place in zip(names[1:], links.coordinators[1:]):
            start_shard(run, place, name)
        lead = Coordinator(run.address, run.folder / "run")
        workers = train_at(run, [(place, lead) for place in links.sites],
                           make_data(options.bin, folder),
                           [f"--min_step_time={options.step_ms}ms", "--checkpoint_interval=0"],
                           timeout_s=3600, once_training=links.become_thin)
        published = {(row["fragment"], row["round"]): row["published_hash"]
                     for name in ["run", *names[1:]]
                     for row in json_lines(run.folder / name / "rounds.jsonl")}
        differ = sum(line["event"] == "hash_mismatch"
                     for line in json_lines(lead.run_dir / "events.jsonl"))
    return over_links.shares(workers, periods) | {"rounds": len(published)}, published, differ


def simulate(options, parameters, coordinators):
    return over_links.simulate(
        options, parameters,
        f"--links={options.sites}x{PAYLOAD_SHARE * options.site_mbit}mbit", f"--rtt_ms={SITE_RTT_MS}",
        f"--coordinator_link={PAYLOAD_SHARE * options.coordinator_mbit}mbit",
        f"--shards={coordinators}", f"--object_bytes={OBJECT_BYTES}")


def measure(options, progress):
    bound_mbit, parameters = over_links.least_rate(options)
    options.site_mbit = round(4 * bound_mbit, 4)
    options.coordinator_mbit = round(options.bound_factor * bound_mbit * options.sites / options.shards, 4)
    progress(f"{options.sites} sites on {options.site_mbit:.3f} Mbit/s, {options.shards} coordinators "
             f"on {options.coordinator_mbit:.3f} Mbit/s ...")
    shared, published, differ = train(options, options.shards, options.periods)
    progress(f"    computing {100 * shared['computing_share']:.2f} % of the time; one coordinator on "
             "such a link ...")
    single, other, more = train(options, 1, options.single_periods)
    progress(f"    computing {100 * single['computing_share']:.2f} % of the time")
    # The shorter run has other rounds at its end: they are sent at its last step.
    common = {key for key in published.keys() & other.keys()
              if key[1] < min(options.periods, options.single_periods)}
    return {
        "shards": options.shards, "sites": options.sites, "step_ms": options.step_ms,
        "parameters": parameters, "bound_mbit": bound_mbit, "site_mbit": options.site_mbit,
        "coordinator_mbit": options.coordinator_mbit, "load_average": os.getloadavg()[0],
        "computing_share": shared["computing_share"],
        "single_computing_share": single["computing_share"],
        "simulated_computing_share": simulate(options, parameters, options.shards),
        "simulated_single_computing_share": simulate(options, parameters, 1),
        "rounds_compared": len(common),
        "hash_mismatches": differ + more + sum(published[key] != other[key] for key in common),
        "shared": shared, "single": single,
    }


def main():
    parser = over_links.make_parser(__doc__, step_ms=400, bound_factor=2.5, periods=4)
    parser.add_argument("--shards", type=int, default=4, help="coordinators, 2 to 8")
    parser.add_argument("--sites", type=int, default=4)
    # Deltas of all sites arrive at once: what a switch's port holds back, and not what 2 ms of a link are.
    parser.add_argument("--queue_bytes", type=int, default=1 << 18, help="of a coordinator's link")
    parser.add_argument("--single_periods", type=int, default=3, help="with one coordinator")
    options = parser.parse_args()
    if not 2 <= options.shards <= 8 or options.sites < 1:
        parser.error(f"--shards is 2 to 8, --sites 1 or more, not {options.shards} and {options.sites}")
    return over_links.report(options, measure)


if __name__ == "__main__":
    sys.exit(main())
