"""Measures the exchange of fragments over long links, beside plain TCP on the same links."""

import bisect
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from network import Network
from processes import Program, json_lines, machine_cpu_s, working_folder

_PLAIN_TCP = Path(__file__).resolve().parent / "plain_tcp.py"
_PLAIN_S = 2
_PUSHES = 16  # Deltas on their way up at once.
_PULLS = 24  # Answers that are waited for, or on their way down.
_WIDTH = 256
_BLOCK_VALUES = 7 * _WIDTH * _WIDTH  # Values of the one layer, about.
_CONFIG = """
run_name: "wan"
model {{ vocabulary_size: {vocabulary} layers: 1 width: 256 heads: 4 mlp_width: 256 }}
train {{ steps: 1000000 }}
sync {{ pattern: BALANCED fragments: {fragments} steps_between_syncs: 1000
       codec_up: FP32 codec_down: FP32 }}
membership {{ start_workers: {workers} max_workers: {workers} quorum: {workers} lease_ms: 60000 }}
"""


def config_text(fragment_bytes, fragments, workers):
    """A run whose deltas and answers are fp32: the fewest cycles per byte on the link."""
    values = fragment_bytes // 4 * fragments
    vocabulary = max(256, (values - _BLOCK_VALUES) // _WIDTH)
    return _CONFIG.format(vocabulary=vocabulary, fragments=fragments, workers=workers)


class Run:
    """A coordinator in its place. Use as a context manager."""

    def __init__(self, network, bin_folder, folder, config, flags=()):
        """`flags`: more of the coordinator's."""
        self.bin = Path(bin_folder)
        self.folder = Path(folder)
        self.run_dir = self.folder / "run"
        self.network = network
        # Nothing but the links to trust here; and whoever chose a congestion control means it.
        self.flags = ["--insecure"]
        if network.congestion:
            self.flags.append("--congestion_control=system")
        self._stack = contextlib.ExitStack()
        (self.folder / "run.textproto").write_text(config)
        address = self.folder / "address"
        program = self.bin / "causeway-coordinator"
        self.coordinator = self.start(
            network.coordinator, "coordinator", program, "serve",
            f"--run_dir={self.run_dir}", f"--config={self.folder / 'run.textproto'}",
            f"--listen={network.address}:0", f"--address_file={address}", "--durability=none",
            "--snapshot_every_rounds=2", *self.flags, *flags)
        try:
            self.coordinator.wait_until(address.exists, "it listens", timeout_s=180)
        except BaseException:
            self._stack.close()
            raise
        self.address = address.read_text().strip()

    def start(self, place, name, *command):
        program = Program(place, self.folder, name, *command)
        self._stack.callback(program.stop)
        return program

    def start_exchange(self, index, *flags):
        program = self.bin / "causeway-wan-exchange"
        return self.start(
            self.network.workers[index], f"worker-{index}", program,
            f"--coordinator={self.address}", f"--id=worker-{index}",
            *self.flags, *flags)

    def rounds(self):
        return json_lines(self.run_dir / "rounds.jsonl")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()


def plain_tcp(network, connections, warm_up_s, seconds):
    """Both directions of all links at once; bytes per second of every link."""
    python = sys.executable
    listener = subprocess.Popen(
        network.coordinator.command(python, "-B", _PLAIN_TCP, "listen", "--address", network.address),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    clients = []
    try:
        port = listener.stdout.readline().strip()
        for worker in network.workers:
            clients.append(subprocess.Popen(
                worker.command(python, "-B", _PLAIN_TCP, "connect", "--address", network.address, "--port",
                               port, "--connections", connections, "--warm_up", warm_up_s,
                               "--seconds", seconds),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True))
        results = [json.loads(client.communicate()[0]) for client in clients]
    finally:
        for client in clients:
            if client.poll() is None:
                client.kill()
                client.wait()
            client.stdout.close()
        listener.stdin.close()
        listener.wait()
        listener.stdout.close()
    return {
        "connections": connections,
        "rtt_ms": min(result["rtt_ms"] for result in results),
        "up_bytes_per_s": statistics.mean(result["up_bytes_per_s"] for result in results),
        "down_bytes_per_s": statistics.mean(result["down_bytes_per_s"] for result in results),
    }


def _at(samples, column, when):
    """A cumulative count at that time, between two samples."""
    index = min(max(1, bisect.bisect([sample[0] for sample in samples], when)), len(samples) - 1)
    before, after = samples[index - 1], samples[index]
    share = (when - before[0]) / (after[0] - before[0])
    return before[column] + share * (after[column] - before[column])


def between(samples, column, begin, end):
    """By how much a cumulative count grew; samples: [time, count, ...], in order."""
    return _at(samples, column, end) - _at(samples, column, begin)


class _Sampler:
    """Of what this side can see of a run: [unix_s, processor time of the coordinator, of the links
    and of this machine]."""

    _INTERVAL_S = 0.2

    def __init__(self, network, coordinator):
        self.samples = []
        self._network = network
        self._coordinator = coordinator
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample_all)

    def _sample_all(self):
        while not self._end.wait(self._INTERVAL_S):
            links = [link.counters() for link in self._network.links]
            self.samples.append([time.time(), self._coordinator.cpu_s(), sum(link["cpu_s"] for link in links),
                                 machine_cpu_s()])

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()


def fragment_bytes(settings):
    """A power of two such that some deltas fill the link."""
    product = settings.bytes_per_s * settings.rtt_ms / 1000
    return min(max(2 << 20, 1 << math.ceil(math.log2(product / 4))), 8 << 20)


def exchange(network, options, warm_up_s, seconds):
    """Fragments up and answers down, by all workers at once, in the steady state."""
    config = config_text(fragment_bytes(network.links[0].settings),
                         _PUSHES + _PULLS + 4, len(network.workers))
    with working_folder() as folder, Run(network, options.bin, folder, config) as run:
        flags = [f"--seconds={warm_up_s + seconds + 1}", f"--pushes={_PUSHES}",
                 f"--pulls={_PULLS}"]
        if options.connections:
            flags.append(f"--connections={options.connections}")
        drivers = [run.start_exchange(i, *flags) for i in range(len(network.workers))]
        with _Sampler(network, run.coordinator) as sampler:
            reports = [json.loads(driver.wait(warm_up_s + seconds + 120)) for driver in drivers]
    begin = max(report["first_answer_unix_s"] for report in reports) + warm_up_s
    end = min(report["samples"][-1][0] for report in reports)

    def grown(samples, column):
        return between(samples, column, begin, end)

    result = {"object_bytes": reports[0]["object_bytes"], "measured_s": end - begin,
              "connections": [report.get("connections") for report in reports]}
    moved = {way: [grown(report["samples"], column) for report in reports]
             for way, column in (("up", 1), ("down", 2))}
    for way, of_each in moved.items():
        result[f"{way}_bytes_per_s_of_each_link"] = [size / (end - begin) for size in of_each]
        result[f"{way}_bytes_per_s"] = statistics.mean(of_each) / (end - begin)
    payload = sum(moved["up"] + moved["down"])
    cpu = {"workers": sum(grown(report["samples"], 3) for report in reports),
           "coordinator": grown(sampler.samples, 1), "links": grown(sampler.samples, 2)}
    result["cpu_s_per_gb"] = {who: spent / payload * 1e9 for who, spent in cpu.items()}
    # Cores that others kept busy meanwhile.
    result["cores_busy_otherwise"] = max(
        0.0, (grown(sampler.samples, 3) - sum(cpu.values())) / (end - begin))
    return result


def worker_count(options, settings):
    """Two, or one where the links would ask more of this machine's processors than they have: both
    ends of every link and the link itself take 1.2 cores for 1 Gbit/s each way."""
    if options.workers:
        return options.workers
    return 2 if 2 * settings.rate_mbit <= 500 * os.cpu_count() else 1


def measure(options, settings):
    """One cell of the matrix, as a dictionary. settings: of every worker's link."""
    workers = worker_count(options, settings)
    rtt_s = settings.rtt_ms / 1000
    plain_warm_up_s = 1 + 8 * rtt_s  # Slow start, and BBR's search for the rate.
    # The worker's choice of the number of connections, too.
    warm_up_s = 5 + 30 * rtt_s
    begin = time.time()
    with Network(options.bin / "causeway-wan-link", [settings] * workers,
                 congestion=options.congestion) as network:
        congestion = network.congestion_control()
        plain = [plain_tcp(network, 1, plain_warm_up_s, _PLAIN_S)]
        exchanged = exchange(network, options, warm_up_s, options.seconds)
        # At the same age: every ten seconds BBR empties the link, to see its round trip.
        plain.append(plain_tcp(network, max(exchanged["connections"]), warm_up_s, options.seconds))
        late = max(counters[way]["late_bytes"] / max(1, counters[way]["delivered"]["bytes"])
                   for counters in (link.counters() for link in network.links)
                   for way in ("up", "down"))
        unseen = network.unseen_drops()
    rate = settings.bytes_per_s

    def utilization(result):
        return {"up": result["up_bytes_per_s"] / rate, "down": result["down_bytes_per_s"] / rate}

    for result in (*plain, exchanged):
        result["utilization"] = utilization(result)
    return {
        "rate_mbit": settings.rate_mbit, "rtt_ms": settings.rtt_ms,
        "loss_percent": settings.loss_percent, "workers": workers,
        "congestion_control": congestion,
        "link_utilization": min(exchanged["utilization"].values()),
        "measured_rtt_ms": plain[0]["rtt_ms"],
        "exchange": exchanged, "plain_tcp": plain,
        "link_late_share": late, "dropped_unseen": unseen,
        "load_average": os.getloadavg()[0], "cores": os.cpu_count(),
        "wall_s": time.time() - begin,
    }
