"""One training of one row over one link, in namespaces, perhaps with a fault; and what it came to.

Two sites are a link's round trip apart. What serves them stands half-way: the star of tests/wan, whose
links each have half the round trip and half the loss, and whose middle passes on what sites send each
other. All processes of a namespace are a machine: they are killed, and their memory counts, together.
"""

import contextlib
import dataclasses
import json
import math
import os
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "wan"), str(ROOT / "tests" / "integration")]

import peers_report  # noqa: E402
from cluster import json_lines  # noqa: E402
from network import Network  # noqa: E402
from processes import Failed, Program, working_folder  # noqa: E402

PORT = 7070
SITES = 2
AWAY_S = 10  # What is killed comes back after so long.
CUT_S = 20
START_S = 180  # Within so long every site does its first step.
EARLY = 8  # Faults, but for who joins, come after this part of the steps.
FAULTS = {"site": "a site is killed, back after 10 s", "server": "the server is killed, back after 10 s",
          "cut": "a site's link is cut for 20 s", "join": "a third site joins half-way",
          "nan": "a site's weights become NaN"}


@dataclasses.dataclass(frozen=True)
class Model:
    """Steps and their least time; whatever a step really costs must be less."""

    name: str
    parameters: int
    batch: int
    steps: int
    step_s: float
    limit_s: float  # Of a training. What takes longer is stopped, and measured as far as it came.


def processes_of(place):
    """Ids of all that run in a namespace, without the one that keeps it."""
    space, keeper = os.stat(place.file).st_ino, int(Path(place.file).parts[2])
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and os.stat(folder / "ns/net").st_ino == space:
                found.append(int(folder.name))
    return [one for one in found if one != keeper]


def memory_of(place):
    """Bytes that they would occupy on a machine of their own: what is private to each, and once, by the largest,
    what they share. A proportional share (Pss) would be smaller the more of the other machines hold PyTorch."""
    private, shared = 0, 0
    for one in processes_of(place):
        with contextlib.suppress(OSError, LookupError):
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()[1:]
            sizes = {name: int(size.split()[0]) << 10 for name, size in (line.split(":") for line in lines)}
            own = sum(size for name, size in sizes.items() if name.startswith("Private_"))
            private += own
            shared = max(shared, sizes["Rss"] - own)
    return private + shared


def kill(place):
    """The machine is gone: everything in it, at once."""
    while alive := processes_of(place):
        for one in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        time.sleep(0.01)


class Cell:
    """A training. What ways read: folder, hub, port, addresses, link, bin, python, sites and the model's."""

    def __init__(self, options, row, model, link, fault=None):
        self.bin, self.python, self.text = options.bin, options.python, options.text
        self.start = options.starts[model.name]
        self.row, self.model, self.fault, self.port, self.sites = row, model, fault, PORT, SITES
        self.between = link  # Site to site.
        self.link = dataclasses.replace(link, rtt_ms=link.rtt_ms / 2, loss_percent=link.loss_percent / 2)
        self.steps, self.step_s, self.parameters = model.steps, model.step_s, model.parameters
        self._memory, self._sampled = {}, 0.0
        self._programs, self._stack = {}, contextlib.ExitStack()
        self._pending = []  # (time, what to do then).
        self._at, self._counted, self._stopped = None, None, False

    def run(self):
        """Returns the result; whatever became of the training, it is one."""
        places = SITES + (self.fault == "join")
        links = [dataclasses.replace(self.link, seed=seed + 1) for seed in range(places)]
        load = os.getloadavg()[0]
        with Network(self.bin / "causeway-wan-link", links, mesh=True) as self.network, \
                working_folder() as self.folder, self._stack:
            self.hub, self.addresses = self.network.address, self.network.addresses
            self._specify()
            try:
                result = self._result(places, self._train())
            finally:
                for place in (*self.network.workers, self.network.coordinator):
                    kill(place)
        return {**result, "load_before": load, "load_after": os.getloadavg()[0]}

    def task(self, site):
        """The command that trains at a site."""
        return [self.python, ROOT / "tests/peers/task.py", self.folder / "specification.json", site]

    # --- Starting -----------------------------------------------------------------------------------

    def _specify(self):
        (self.folder / "specification.json").write_text(json.dumps({
            "way": self.row.way, "variant": self.row.variant, "model_name": self.model.name,
            "batch": self.model.batch, "steps": self.steps, "step_s": self.step_s, "text": str(self.text), "start": str(self.start),
            "folder": str(self.folder), "hub": self.hub, "port": PORT, "addresses": self.addresses,
            "sites": SITES, "rate_mbit": self.between.rate_mbit, "rtt_ms": self.between.rtt_ms,
            "parameters": self.parameters, "nan": [1, self.steps // EARLY] if self.fault == "nan" else None}))

    def _launch(self, name, place, address, command):
        variables = {
            "PATH": f"{Path(self.python).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": 1,
            "PYTHONPATH": f"{ROOT / 'worker/python'}:{ROOT / 'tests/peers'}", "PYTHONDONTWRITEBYTECODE": 1,
            "CAUSEWAY_SITE_LIBRARY": self.bin / "libcauseway_site.so", "GLOO_SOCKET_IFNAME": "wan",
            "PEERS_SPECIFICATION": self.folder / "specification.json", "PEERS_FOLDER": ROOT / "tests/peers",
            "FLWR_HOME": self.folder / "flwr", "FLWR_TELEMETRY_ENABLED": 0, "HOME": self.folder}
        # A machine of its own: its name is its address, and there is nobody to ask for other names.
        program = Program(place, self.folder, name, "unshare", "--uts", "--mount", "sh", "-c",
                          'mount --bind /dev/null /etc/resolv.conf && hostname "$0" && exec "$@"', address,
                          "env", *(f"{key}={value}" for key, value in variables.items()), *command)
        self._programs[name] = program
        self._stack.callback(program.stop)
        return program

    def _start_server(self):
        if server := getattr(self.row.module, "server", None):
            program = self._launch("server", self.network.coordinator, self.hub, server(self))
            program.wait_until(self._listens, "it listens", START_S)

    def _listens(self):
        with self.network.coordinator.socket() as probe:
            probe.settimeout(1)
            with contextlib.suppress(OSError):
                probe.connect((self.hub, PORT))
                return True
        return False

    def _start_site(self, site):
        command = getattr(self.row.module, "command", lambda cell, site: cell.task(site))
        self._launch(f"site-{site}", self.network.workers[site], self.addresses[site], command(self, site))

    def _start_late(self):
        if command := getattr(self.row.module, "after_sites", None):
            self._launch("late", self.network.coordinator, self.hub, command(self))

    def _train(self):
        """Why it never came to it, or an empty text."""
        try:
            self._start_server()
            for site in range(SITES):
                self._start_site(site)
            self._start_late()
            self._watch()
        except Failed as failure:
            return str(failure)
        return ""

    # --- While it trains -----------------------------------------------------------------------------

    def lines(self, site):
        return json_lines(self.folder / f"steps-{site}.jsonl")

    def _steps(self, site):
        """How many different ones it has done."""
        return len({line["step"] for line in self.lines(site) if "step" in line})

    def _sample(self):
        if time.monotonic() < self._sampled + 1:
            return
        self._sampled = time.monotonic()
        for name, place in (("server", self.network.coordinator),
                            *((f"site-{site}", place) for site, place in enumerate(self.network.workers))):
            self._memory[name] = max(self._memory.get(name, 0), memory_of(place))

    def _counters(self):
        """Bytes (up, down) of every site's interface."""
        found = []
        for place in self.network.workers:
            device, = json.loads(place.run("ip", "-json", "-statistics", "link", "show", "dev", "wan"))
            found.append((device["stats64"]["tx"]["bytes"], device["stats64"]["rx"]["bytes"]))
        return found

    def _break(self):
        """What the fault is, now."""
        self._at = time.time()
        again = time.monotonic() + AWAY_S
        if self.fault == "cut":
            self.network.links[1].cut(CUT_S)
        elif self.fault == "join":
            self._start_site(SITES)
        elif self.fault == "site":
            kill(self.network.workers[1])
            self._pending.append((again, lambda: self._start_site(1)))
        elif self.fault == "server":
            kill(self.network.coordinator)
            self._pending.append((again, lambda: (self._start_server(), self._start_late())))

    def _finals(self):
        return getattr(self.row.module, "FINALS", [str(site) for site in range(SITES)])

    def _ended(self, final):
        name = "late" if final == "server" else f"site-{final}"
        return (self.folder / f"final-{final}.json").exists() or self._programs[name].child.poll() is not None

    def _watch(self):
        began = time.monotonic()
        if getattr(self.row.module, "COUNT_FROM_START", False):
            self._counted = self._counters()
        training = None
        due = self.steps // (2 if self.fault == "join" else EARLY)
        while True:
            self._sample()
            if training is None and all(map(self._steps, range(SITES))):
                training = time.monotonic()
                self._counted = self._counted or self._counters()
            if self.fault and self._at is None and self._steps(0) >= due:
                self._break()
            for one in [one for one in self._pending if one[0] <= time.monotonic()]:
                self._pending.remove(one)
                one[1]()
            if not self._pending and all(map(self._ended, self._finals())):
                return
            if training is None and time.monotonic() > began + START_S:
                raise Failed(f"no first step of all sites within {START_S} s")
            if training is not None and time.monotonic() > training + self.model.limit_s:
                self._stopped = True
                return
            time.sleep(0.1)

    # --- What it came to -----------------------------------------------------------------------------

    def _tail(self, name):
        program = self._programs.get(name)
        if program is None:
            return ""
        text = program.log() + (program.output.read_text(errors="replace") if program.output.exists() else "")
        return " ".join(text.split())[-600:]

    def _result(self, places, why):
        now = time.time()
        counters = self._counters()
        finals = {name: json.loads(path.read_text()) for name in self._finals()
                  if (path := self.folder / f"final-{name}.json").exists()}
        end = max((final["end"] for final in finals.values()), default=now)
        logs = [[line for line in self.lines(site) if line["t"] <= now] for site in range(places)]
        begins = [next((line["begin"] for line in log if "step" in line), None) for log in logs[:SITES]]
        done = [self._steps(site) for site in range(places)]
        whole = len(finals) == len(self._finals())
        loss = sum(final["loss"] for final in finals.values()) / max(1, len(finals))
        result = {
            "row": self.row.label, "model": self.model.name, "parameters": self.parameters, "steps": self.steps,
            "step_s": self.step_s, "fault": self.fault, "fault_at": self._at, "whole": whole,
            "stopped": self._stopped, "done": done, "logs": logs, "congestion": self.network.congestion_control(),
            "status": {name: program.child.poll() for name, program in self._programs.items()},
            "loss": loss if finals and math.isfinite(loss) else None, "limit_s": self.model.limit_s,
            "finished": sorted(finals), "expected": self._finals(),
            "longest_pause_s": max((length for _, length in peers_report.pauses(logs[0])), default=0.0),
            "equal": len({final["sha256"] for final in finals.values()}) == 1 if whole else None,
            "machine_memory": {"site": max(self._memory.get(f"site-{site}", 0) for site in range(places)),
                               "server": self._memory.get("server", 0)}}
        if not whole:
            result["why"] = why or ("stopped" if self._stopped else "ended")
            result["tails"] = {name: self._tail(name) for name in self._programs}
        if None not in begins and self._counted:
            walls = [end - begin for begin in begins]
            counted = [[after[way] - before[way] for way in (0, 1)]
                       for before, after in zip(self._counted, counters)]
            steps = max(1, *done[:SITES])
            result |= {
                "wall_s": max(walls),
                "share": sum(count * self.step_s / wall for count, wall in zip(done, walls)) / SITES,
                "bytes_per_step": {way: sum(site[at] for site in counted[:SITES]) / SITES / steps
                                   for at, way in enumerate(("up", "down"))}}
        return result
