"""How much of the time workers compute while something is amiss: a coordinator that is killed and
stays away, a link that nothing crosses, or links whose rate jumps and that fall silent. With an overlap
that gives way, and beside it without; and the run with it once more, from the record of its merges, to
the same bits.
"""

import concurrent.futures
import random
import signal
import threading
import time

from exchange import Run
from network import LinkSettings, Network
from processes import Failed, hashes, working_folder
from training import Coordinator, make_data, train_at
from utilization import Model, bytes_per_sync

_WORKERS = 4
_STEP_S = 1
_RATE_MBIT = 100
_RTT_MS = 100
_BEFORE_S = 60  # Time before the outage; the rest of three minutes is after it began.
_WINDOW_S = 180
_OVERLAP = 2
_BLACK_LINK = 0
_JITTER_OVERLAP = 8
_JITTER_FRAGMENTS = 30
_SILENT_S = 3
_SILENT_EVERY_S = 60

_CONFIG = """
run_name: "outage"
model {{ preset: "tiny-1m" sequence_length: 16 }}
train {{ steps: {steps} batch_sequences: 1 optimizer: ADAMW seed: 1 evaluation_sequences: 1 }}
sync {{ pattern: BALANCED fragments: {fragments} steps_between_syncs: {period}
       overlap_steps: {overlap} max_overlap_steps: {latest} keep_in_flight: 1
       codec_up: {codec} codec_down: {codec} }}
membership {{ start_workers: {workers} max_workers: {workers} quorum: {workers} lease_ms: 120000 }}
"""


def _config(period, overlap, latest, fragments, steps, codec):
    return _CONFIG.format(period=period, overlap=overlap, latest=latest, fragments=fragments,
                          steps=steps, workers=_WORKERS, codec=codec)


class _Training:
    """One training of all workers, with something that happens meanwhile."""

    def __init__(self, options, settings, config, flags=lambda name: [], meanwhile=None):
        self.options = options
        self.settings = settings
        self.config = config
        self.flags = flags
        self.meanwhile = meanwhile

    def result(self):
        with Network(self.options.bin / "causeway-wan-link", [self.settings] * _WORKERS,
                     congestion=self.options.congestion) as network, \
                working_folder() as folder, \
                Run(network, self.options.bin, folder, self.config) as run:
            happened = []
            coordinator = Coordinator(run.address, run.run_dir)
            workers = train_at(
                run, [(place, coordinator) for place in network.workers], make_data(self.options.bin, folder),
                lambda name: ["--checkpoint_interval=0", *self.flags(name)], 3600,
                lambda: happened.append(self.meanwhile(network, run) if self.meanwhile else None))
            began = happened[0]
            if callable(began):
                began()
            names = [f"worker-{i}" for i in range(_WORKERS)]
            return {
                "began_unix_s": None if callable(began) else began,
                "hashes": hashes(run.run_dir),
                "workers": [worker["steps"] for worker in workers],
                "merges": {name: self._record(run, name) for name in names},
                # As the worker counts it.
                "links": [worker["summary"]["link"] for worker in workers]}

    @staticmethod
    def _record(run, name):
        path = run.folder / name / "merges.jsonl"
        return path.read_text() if path.exists() else ""


def _share(steps, begin, end):
    """Of the time from begin to end that a worker computed, from the steps that ended in it."""
    inside = [line for line in steps if begin <= line["unix_s"] <= end]
    if len(inside) < 2:
        raise Failed("too few steps to measure")
    wall = inside[-1]["unix_s"] - inside[0]["unix_s"]
    if inside[-1] is not steps[-1]:
        # A step that waits beyond the end counts as waiting until then.
        wall = max(wall, end - inside[0]["unix_s"] - _STEP_S)
    return (inside[-1]["compute_s"] - inside[0]["compute_s"]) / wall


def _computing(result, begin, end):
    shares = [_share(steps, begin, end) for steps in result["workers"]]
    return {"mean": sum(shares) / len(shares), "least": min(shares),
            "blocked_s": max(steps[-1]["blocked_s"] for steps in result["workers"])}


def _replay(options, config, result, folder):
    """The same run from the record, in peace and as fast as it goes: its rounds' hashes."""
    for name, record in result["merges"].items():
        (folder / f"{name}.merges").write_text(record)
    again = _Training(options, LinkSettings(1000, 1), config,
                      lambda name: [f"--replay_merges={folder / f'{name}.merges'}"])
    return again.result()["hashes"]


def _both(options, progress, what, overlap, fragments, steps, codec, meanwhile):
    """Runs both at a time: neither needs more of the machine than a little."""
    period = options.steps_between_syncs
    configs = [_config(period, overlap, latest, min(fragments, period), steps, codec) for latest in (period - 1, 0)]
    trainings = [_Training(options, LinkSettings(rate_mbit=_RATE_MBIT, rtt_ms=_RTT_MS), config,
                           lambda _: [f"--min_step_time={_STEP_S}s"], meanwhile) for config in configs]
    progress(f"{what}, with an overlap that gives way and without ...")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        elastic, rigid = pool.map(lambda training: training.result(), trainings)
    with working_folder() as folder:
        progress("once more from the record of its merges ...")
        equal = _replay(options, configs[0], elastic, folder) == elastic["hashes"]
    return elastic, rigid, equal


def _later(breaks):
    """Calls breaks(network, run) after a while; gives the time at which it did."""
    def meanwhile(network, run):
        time.sleep(_BEFORE_S)
        began = time.time()
        breaks(network, run)
        return began
    return meanwhile


def _kill_and_return(outage_s):
    def breaks(network, run):
        run.coordinator.child.send_signal(signal.SIGKILL)
        run.coordinator.child.wait()
        time.sleep(outage_s)
        run.coordinator = run.start(
            network.coordinator, "coordinator-again", run.bin / "causeway-coordinator", "serve",
            f"--run_dir={run.run_dir}", f"--listen={run.address}", "--durability=none",
            "--snapshot_every_rounds=2", *run.flags)
    return breaks


def _run_break(options, progress, what, breaks):
    """Of three minutes, the second begins with what `breaks` does."""
    period = options.steps_between_syncs
    elastic, rigid, equal = _both(options, progress, f"{what}, H {period}", _OVERLAP, 10,
                                  max(period, _WINDOW_S + 20), "INT4", _later(breaks))
    shares = [_computing(result, result["began_unix_s"] - _BEFORE_S,
                         result["began_unix_s"] - _BEFORE_S + _WINDOW_S)
              for result in (elastic, rigid)]
    return {"steps_between_syncs": period, "overlap_steps": _OVERLAP,
            "max_overlap_steps": period - 1, "step_s": _STEP_S, "workers": _WORKERS,
            "rate_mbit": _RATE_MBIT, "rtt_ms": _RTT_MS, "rounds": len(elastic["hashes"]),
            "resent_chunks": sum(link["resent_chunks"] for link in elastic["links"]),
            "resumes": sum(link["resumes"] for link in elastic["links"]),
            **_report(shares, equal)}


def run_outage(options, progress):
    """The coordinator is killed and stays away for --outage_s."""
    return {"outage_s": options.outage_s,
            **_run_break(options, progress, f"away for {options.outage_s:g} s",
                         _kill_and_return(options.outage_s))}


def run_black(options, progress):
    """Nothing crosses one worker's link for --black_s."""
    return {"black_s": options.black_s,
            **_run_break(options, progress, f"one link black for {options.black_s:g} s",
                         lambda network, _: network.links[_BLACK_LINK].cut(options.black_s))}


def _report(shares, equal):
    return {"computing_share": shares[0]["mean"], "computing_share_without": shares[1]["mean"],
            "least_share": shares[0]["least"], "least_share_without": shares[1]["least"],
            "blocked_s": shares[0]["blocked_s"], "blocked_s_without": shares[1]["blocked_s"],
            "replay_bit_equal": equal}


def _jitter(peak_mbit, seed):
    def meanwhile(network, _):
        stop = threading.Event()

        def shake():
            draw = random.Random(seed)
            silent_at = [time.monotonic() + draw.uniform(0, _SILENT_EVERY_S) for _ in network.links]
            while not stop.wait(1):
                for i, link in enumerate(network.links):
                    link.change(LinkSettings(rate_mbit=peak_mbit * draw.uniform(0.1, 1),
                                             rtt_ms=_RTT_MS, queue_bytes=64 << 10))
                    if time.monotonic() >= silent_at[i]:
                        link.cut(_SILENT_S)
                        silent_at[i] += _SILENT_EVERY_S

        shaker = threading.Thread(target=shake)
        shaker.start()

        def end():
            stop.set()
            shaker.join()
        return end
    return meanwhile


def run_jitter(options, progress):
    """Links whose rate is drawn every second, and that are silent for 3 s of every minute."""
    period = options.steps_between_syncs
    # In fp32, whose rates are such that a packet takes milliseconds, not seconds.
    size, _ = bytes_per_sync(options, Model("tiny-1m", tokens=16, step_ms=0, fragments=1, overlap=0),
                             "FP32")
    bound_mbit = size * 8e-6 / (period * _STEP_S)
    peak = options.bound_factor * bound_mbit
    elastic, rigid, equal = _both(options, progress, f"rates of {0.1 * peak:.3f} to {peak:.3f} Mbit/s", _JITTER_OVERLAP,
                                  _JITTER_FRAGMENTS, _WINDOW_S + period, "FP32", _jitter(peak, options.seed))
    shares = []
    for result in (elastic, rigid):
        first = max(steps[0]["unix_s"] for steps in result["workers"]) + period * _STEP_S
        shares.append(_computing(result, first, first + _WINDOW_S))
    # Such a link's average rate, by the least rate: nobody can compute for a larger share of the
    # time than it.
    mean = 0.55 * options.bound_factor * (1 - _SILENT_S / _SILENT_EVERY_S)
    sizes = {"steps_between_syncs": period, "overlap_steps": _JITTER_OVERLAP,
             "max_overlap_steps": period - 1, "bound_mbit": bound_mbit,
             "peak_mbit": peak, "mean_of_the_bound": mean,
             "silent_s_per_minute": _SILENT_S, "workers": _WORKERS, "step_s": _STEP_S}
    return {**sizes, **_report(shares, equal)}


def table(report):
    """For people, of either."""
    name = (f"{report['outage_s']:g} s away" if "outage_s" in report else
            f"{report['black_s']:g} s black" if "black_s" in report else "jitter")
    return "\n".join([
        "| | H | tau | tau_max | computing | without slack | replay |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
        f"| {name} | {report['steps_between_syncs']} | {report['overlap_steps']} | "
        f"{report['max_overlap_steps']} | {100 * report['computing_share']:.1f} % | "
        f"{100 * report['computing_share_without']:.1f} % | "
        f"{'equal bit for bit' if report['replay_bit_equal'] else 'DIFFERS'} |"])
