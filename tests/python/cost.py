"""Measures what being a site costs a PyTorch trainer, and what it would pay without Causeway.

    tests/python/cost [--json] [--steps N] [--step_s S] [--layers N --width N] [--links MBIT,...]

Trainers of GPT-2's shape (124M parameters) are sites of a run with H 30 and 8 fragments, four bits both
ways: two of one process each, and one of two processes with FSDP2. A step is a sleep and a real step of
AdamW on constant gradients: `step` in the result says so.

  training_thread_share     of the wall time that the training thread spends in Causeway; the largest
                            of all sites. Other work on the machine counts, so
                            training_thread_cpu_seconds_per_step stands beside it
  step_share_idle, step_share_due
                            the same of steps at which nothing was sent or merged, and of the others;
                            step_seconds_idle and _due: the median of what one spends in Causeway,
                            step_count_idle and _due: how many there were
  host_bytes_per_parameter  of what the process of a site occupies more than before it joined, by its
                            resident memory between steps (median); `_peak` the most, `_by_account`
                            the arena and the published values
  fsdp2                     the same of each process of a sharded site
  links                     over emulated links (root and /dev/net/tun): the sites, and beside them
                            torch's DistributedDataParallel with its bf16 hook over gloo: seconds that
                            the exchange of one step takes, and its share of a step that overlaps
                            nothing and of one that overlaps all it can

Exit status 77 if there is no Python with torch.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tests" / "wan"))

import network  # noqa: E402
from processes import Failed, Program  # noqa: E402

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
KINDS = ("_idle", "_due")
FRAGMENTS, DISTANCE, OVERLAP = 8, 30, 4
RANKS = 2
PATIENCE_S = 1200


class Here:
    """This machine's own network, as a place."""

    @staticmethod
    def command(*command):
        return [str(word) for word in command]


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
    parser.add_argument("--links", default="1000,100", help="Mbit/s; empty: none")
    parser.add_argument("--rtt_ms", type=float, default=20)
    parser.add_argument("--exchanges", type=int, default=3, help="steps of data parallelism per link")
    arguments = parser.parse_args()
    if arguments.steps < DISTANCE:
        parser.error(f"--steps must be at least {DISTANCE}, the distance of two syncs")
    arguments.bin = Path(os.environ["CAUSEWAY_BIN"]).resolve()
    return arguments


def say(words):
    print(words, file=sys.stderr, flush=True)


class Measurement:
    """Processes of one part, stopped at its end."""

    def __init__(self, arguments, folder):
        self._arguments = arguments
        self._programs = []
        self.folder = folder

    def __enter__(self):
        self.folder.mkdir()
        return self

    def __exit__(self, *_):
        for program in reversed(self._programs):
            program.stop()

    def start(self, place, name, *command):
        program = Program(place, self.folder, name, *command)
        self._programs.append(program)
        return program

    def serve(self, place, host, sites):
        """Starts a coordinator that gets its model from the first site; returns HOST:PORT."""
        config = CONFIG.format(steps=self._arguments.steps, fragments=FRAGMENTS, distance=DISTANCE,
                               overlap=OVERLAP, sites=sites)
        (self.folder / "run.textproto").write_text(config, encoding="utf-8")
        address = self.folder / "address"
        self.coordinator = self.start(
            place, "coordinator", self._arguments.bin / "causeway-coordinator", "serve",
            f"--run_dir={self.folder / 'run'}", f"--config={self.folder / 'run.textproto'}",
            "--initial=first-site", f"--listen={host}:0", "--http=off", "--insecure",
            "--durability=none", f"--address_file={address}", "--exit_when_finished")
        self.coordinator.wait_until(lambda: address.exists() and address.read_text().strip(),
                                    "the coordinator listens")
        return address.read_text().strip()

    def trainer(self, place, kind, name, *flags, ranks=1, environment=()):
        """One process of cost_site.py, or those of torchrun."""
        command = [self._arguments.torch_python, "-B"]
        if ranks > 1:
            command += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
        variables = [f"PYTHONPATH={ROOT / 'worker' / 'python'}", "OMP_NUM_THREADS=1",
                     f"CAUSEWAY_SITE_LIBRARY={self._arguments.bin / 'libcauseway_site.so'}"]
        return self.start(place, name, "/usr/bin/env", *variables, *environment, *command,
                          HERE / "cost_site.py", kind, f"--layers={self._arguments.layers}",
                          f"--width={self._arguments.width}", f"--step_s={self._arguments.step_s}",
                          f"--out={self.folder / name}", *flags)

    def result(self, name, rank=0):
        return json.loads((self.folder / f"{name}.{rank}").read_text(encoding="utf-8"))


def sites(arguments, folder, coordinator_place, host, places):
    """A run with one site in each place. Returns their results."""
    with Measurement(arguments, folder) as run:
        address = run.serve(coordinator_place, host, len(places))
        trainers = [run.trainer(place, "site", f"site-{index}", f"--coordinator={address}",
                                f"--id=site-{index}", *(["--insecure"] if host != "127.0.0.1" else []))
                    for index, place in enumerate(places)]
        for trainer in trainers:
            trainer.wait(PATIENCE_S)
        run.coordinator.wait(60)
        mismatches = json.loads((run.folder / "run" / "summary.json").read_text())["hash_mismatches"]
        if mismatches:
            raise Failed(f"{mismatches} hashes were not equal; see {run.folder}")
        return [run.result(f"site-{index}") for index in range(len(places))]


def sharded_site(arguments, folder):
    """A run with one site of several processes. Returns the result of each."""
    with Measurement(arguments, folder) as run:
        address = run.serve(Here, "127.0.0.1", 1)
        run.trainer(Here, "site", "sharded", f"--coordinator={address}", "--id=sharded",
                    ranks=RANKS).wait(PATIENCE_S)
        run.coordinator.wait(60)
        return [run.result("sharded", rank) for rank in range(RANKS)]


def data_parallel(arguments, folder, links):
    """DistributedDataParallel between the two ends of a link. Returns seconds of one exchange."""
    with Measurement(arguments, folder) as run:
        ranks = []
        for rank, (place, device) in enumerate(((links.coordinator, "wan0"), (links.workers[0], "wan"))):
            environment = (f"RANK={rank}", "WORLD_SIZE=2", f"MASTER_ADDR={network.ADDRESS}",
                           "MASTER_PORT=29500", f"GLOO_SOCKET_IFNAME={device}")
            ranks.append(run.trainer(place, "data_parallel", "data_parallel",
                                     f"--steps={arguments.exchanges}", environment=environment))
        for rank in ranks:
            rank.wait(PATIENCE_S)
        return run.result("data_parallel")["exchange_seconds"]


def summary_of(results):
    """Of the sites of one run."""
    return {
        "training_thread_share": max(one["training_thread_share"] for one in results),
        **{name: max(one[name] for one in results) for name in results[0] if name.endswith(KINDS)},
        "training_thread_cpu_seconds_per_step": max(one["training_thread_cpu_seconds_per_step"]
                                                    for one in results),
        "step_seconds": max(one["step_seconds"] for one in results),
        "longest_step_in_causeway_seconds": max(one["longest_step_in_causeway_seconds"]
                                                for one in results),
        "waited_seconds": max(one["waited_seconds"] for one in results),
        "join_seconds": max(one["join_seconds"] for one in results),
        "bytes_up_per_site": results[0]["bytes_up"],
        "bytes_down_per_site": results[0]["bytes_down"],
    }


def over_link(arguments, folder, rate_mbit):
    say(f"over {rate_mbit} Mbit/s, {arguments.rtt_ms} ms")
    settings = network.LinkSettings(rate_mbit=rate_mbit, rtt_ms=arguments.rtt_ms)
    # Data parallelism first: it is to blame for nothing that the sites leave behind.
    with network.Network(arguments.bin / "causeway-wan-link", [settings] * arguments.sites,
                         congestion="cubic") as links:
        exchange_s = data_parallel(arguments, folder / f"data_parallel-{rate_mbit}", links)
        say(f"  data parallel, bf16: {exchange_s:.2f} s per exchange")
        results = sites(arguments, folder / f"sites-{rate_mbit}", links.coordinator, network.ADDRESS,
                        links.workers)
        drops = links.unseen_drops()
    causeway = summary_of(results)
    say(f"  Causeway: {100 * causeway['training_thread_share']:.2f} % of the training thread")
    step_s = arguments.step_s
    return {
        "rate_mbit": rate_mbit,
        "rtt_ms": arguments.rtt_ms,
        "packets_lost_by_the_machine": drops,
        "causeway": causeway,
        "data_parallel_bf16": {
            "exchange_seconds": exchange_s,
            "share_without_overlap": exchange_s / (exchange_s + step_s),
            "share_with_full_overlap": max(0.0, exchange_s - step_s) / max(exchange_s, step_s),
        },
    }


def measure(arguments, folder):
    result = {
        "step": f"a sleep and a real AdamW step on constant gradients, {arguments.step_s} s together",
        "steps_between_syncs": DISTANCE, "overlap_steps": OVERLAP, "fragments": FRAGMENTS,
        "sites": arguments.sites, "cores": os.cpu_count(),
        "load_average_before": os.getloadavg()[0],
    }
    say("two sites on this machine" if arguments.sites == 2 else f"{arguments.sites} sites here")
    here = sites(arguments, folder / "here", Here, "127.0.0.1", [Here] * arguments.sites)
    result |= {"parameters": here[0]["parameters"], "steps": here[0]["steps"]}
    for name in ("host_bytes_per_parameter", "host_bytes_per_parameter_peak",
                 "host_bytes_per_parameter_by_account"):
        result[name] = max(one[name] for one in here)
    result["on_this_machine"] = summary_of(here)
    say(f"  {100 * result['on_this_machine']['training_thread_share']:.2f} % of the training thread, "
        f"{result['host_bytes_per_parameter']:.2f} bytes per parameter")
    result |= {name: value for name, value in result["on_this_machine"].items()
               if name.endswith(KINDS)}
    say(f"one site of {RANKS} processes, FSDP2")
    sharded = sharded_site(arguments, folder / "sharded")
    result["fsdp2"] = {
        "ranks": RANKS,
        "training_thread_share": max(one["training_thread_share"] for one in sharded),
        "host_bytes_per_parameter_by_rank": [one["host_bytes_per_parameter"] for one in sharded],
        "host_bytes_per_parameter_peak_by_rank": [one["host_bytes_per_parameter_peak"]
                                                  for one in sharded],
    }
    result["links"] = []
    rates = [float(rate) for rate in arguments.links.split(",") if rate]
    if rates and (reason := network.why_impossible()):
        result["links_skipped"] = reason
        say(f"links skipped: {reason}")
        rates = []
    for rate in rates:
        result["links"].append(over_link(arguments, folder, rate))
    result["training_thread_share"] = max(
        [result["on_this_machine"]["training_thread_share"],
         *(link["causeway"]["training_thread_share"] for link in result["links"])])
    result["load_average_after"] = os.getloadavg()[0]
    return result


def main():
    arguments = parse_arguments()
    begin = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="causeway_cost_")))
        try:
            result = measure(arguments, folder)
        except Failed as error:
            print(f"tests/python/cost: {error}", file=sys.stderr)
            return 1
    result["elapsed_seconds"] = round(time.monotonic() - begin, 1)
    print(json.dumps(result) if arguments.json else json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
