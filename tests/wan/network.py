"""Network namespaces joined by long links in user space: stars with a coordinator in the middle.

    with Network(program, [LinkSettings(rate_mbit=100, rtt_ms=50)] * 2) as network:
        subprocess.run(network.coordinator.command("ss", "-ti"))
        network.links[0].cut(5)

The coordinator is at ADDRESS in its namespace; worker i has a namespace and a link of its own. A star
may have a worker of another one in its middle, which makes a tree. The namespaces have no names: they,
and the links, go away with this process whatever ends it.
"""

import contextlib
import ctypes
import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys

ADDRESS = "10.77.0.1"
SKIPPED = 77  # Exit status of a test that cannot run here; ctest knows it.
_DEVICE = "wan"
_CLONE_NEWNET = 0x40000000
# Packets of up to 64 KiB that wait for the link process: it, not this queue, is the bottleneck.
_DEVICE_QUEUE_PACKETS = "20000"


def why_impossible():
    """What this machine or account lacks for links between namespaces, or None."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    for tool in ("ip", "unshare", "nsenter"):
        if shutil.which(tool) is None:
            return f"there is no program '{tool}'"
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "/dev/net/tun may not be opened by this account"
    made = subprocess.run(["unshare", "--net", "true"], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"no network namespace can be made: {made.stderr.strip()}"
    return None


def skip_if_impossible():
    """Ends the program with SKIPPED and the reason."""
    if reason := why_impossible():
        print(f"skipped: {reason}")
        sys.exit(SKIPPED)


@dataclasses.dataclass(frozen=True)
class LinkSettings:
    """Of one worker's link, both ways alike. queue_bytes 0: one bandwidth-delay product."""

    rate_mbit: float = 1000
    rtt_ms: float = 100
    loss_percent: float = 0
    queue_bytes: int = 0
    seed: int = 1

    @property
    def bytes_per_s(self):
        return self.rate_mbit * 1e6 / 8

    def flags(self):
        return [f"--{field.name}={getattr(self, field.name)}"
                for field in dataclasses.fields(self)]


def _enter(namespace):
    """For the calling thread. (os.setns is of Python 3.12.)"""
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


class Place:
    """A network namespace, kept by a process that ends with this one."""

    def __init__(self):
        self._keeper = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo ready; exec cat"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, start_new_session=True)
        if self._keeper.stdout.readline() != b"ready\n":
            raise RuntimeError("no network namespace could be made")
        self.file = f"/proc/{self._keeper.pid}/ns/net"
        self.run("ip", "link", "set", "lo", "up")

    def command(self, *command):
        """The same command, to be run in this place."""
        return ["nsenter", f"--net={self.file}", *(str(word) for word in command)]

    def run(self, *command):
        """Runs it to its end and returns what it prints; raises if it fails."""
        done = subprocess.run(self.command(*command), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
        return done.stdout

    def socket(self, kind=socket.SOCK_STREAM):
        """A socket of this place, for this process: it stays there."""
        with open("/proc/thread-self/ns/net", "rb") as home, open(self.file, "rb") as away:
            _enter(away)
            try:
                return socket.socket(socket.AF_INET, kind)
            finally:
                _enter(home)

    def close(self):
        self._keeper.stdin.close()
        self._keeper.wait()
        self._keeper.stdout.close()


class Link:
    """A running causeway-wan-link; up is from the worker to the coordinator."""

    def __init__(self, program, worker, coordinator, far_device, settings):
        self.settings = settings
        self._process = subprocess.Popen(
            [str(program), f"--near_namespace={worker.file}", f"--near_device={_DEVICE}",
             f"--far_namespace={coordinator.file}", f"--far_device={far_device}",
             *settings.flags()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        if not self._process.stdout.readline():
            raise RuntimeError(f"{program} ended with {self._process.wait()}")

    def tell(self, line):
        """One command of the link program; returns its answer."""
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise ValueError(f"'{line}': {answer['error']}")
        return answer

    def change(self, settings):
        """From now on; the queue, too."""
        self.settings = settings
        self.tell(f"set rate_mbit {settings.rate_mbit} delay_ms {settings.rtt_ms / 2} "
                  f"loss_percent {settings.loss_percent} queue_bytes {settings.queue_bytes}")

    def cut(self, seconds):
        self.tell(f"cut {seconds}")

    def reset(self):
        self.tell("reset")

    def counters(self):
        return self.tell("counters")

    def timeline(self):
        return self.tell("timeline")

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Network:
    """The namespaces and links. Use as a context manager.

    congestion: the congestion control of all connections over the links, by its name in the kernel.
    mesh: the workers reach each other, too, through the middle.
    above: a network whose worker number `index` is this one's middle. It lives longer than this one.
    """

    def __init__(self, program, settings, congestion=None, above=None, index=0, mesh=False):
        self._stack = contextlib.ExitStack()
        self.congestion = congestion
        self._control = ("congctl", congestion) if congestion else ()
        self.workers = []
        self.links = []
        # A star has 10.77.N.1 in the middle, 10.77.N+1.0/24 around it.
        subnet = 0 if above is None else 2 * index + 2
        self.address = f"10.77.{subnet}.1"
        self._around = f"10.77.{subnet + 1}."
        self.addresses = [f"{self._around}{number + 1}" for number in range(len(settings))]
        try:
            self.coordinator = above.workers[index] if above else self._place()
            self.coordinator.run("ip", "address", "add", f"{self.address}/32", "dev", "lo")
            for number, one in enumerate(settings):
                self._add_worker(program, number, one)
            if above:
                self._pass_through(above, index)
            if mesh:
                self._pass_on(f"{self._around}0/24")
        except BaseException:
            self._stack.close()
            raise

    def _place(self):
        place = Place()
        self._stack.callback(place.close)
        return place

    def _add_worker(self, program, index, settings):
        worker = self._place()
        self.workers.append(worker)
        device = f"{_DEVICE}{index}"
        link = Link(program, worker, self.coordinator, device, settings)
        self._stack.callback(link.close)
        self.links.append(link)
        own = self.addresses[index]
        for place, name, address, peer in ((worker, _DEVICE, own, self.address),
                                           (self.coordinator, device, self.address, own)):
            place.run("ip", "address", "add", address, "peer", peer, "dev", name)
            # No address of its own: nothing speaks on the link but what is measured.
            place.run("ip", "link", "set", name, "addrgenmode", "none")
            place.run("ip", "link", "set", name, "up", "txqueuelen", _DEVICE_QUEUE_PACKETS)
            if self.congestion:
                # By route: the sysctl takes only what the host allows all its namespaces.
                place.run("ip", "route", "replace", peer, "dev", name, "proto", "kernel",
                          "scope", "link", "src", address, "congctl", self.congestion)

    def _pass_on(self, target):
        """Lets the workers reach what is there, through this one's place."""
        self.coordinator.run("sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        for worker in self.workers:
            worker.run("ip", "route", "add", target, "via", self.address, "dev", _DEVICE,
                       "onlink", *self._control)

    def _pass_through(self, above, index):
        """Lets the workers reach the coordinator above."""
        self._pass_on(above.address)
        above.coordinator.run("ip", "route", "add", f"{self._around}0/24", "dev",
                              f"{_DEVICE}{index}", *self._control)

    def congestion_control(self):
        """Of the connections over the links, as the kernel calls it."""
        return self.congestion or self.coordinator.run(
            "cat", "/proc/sys/net/ipv4/tcp_congestion_control").strip()

    def unseen_drops(self):
        """Packets that the interfaces dropped before the links could count them: must be 0."""
        total = 0
        for place in [self.coordinator, *self.workers]:
            for device in json.loads(place.run("ip", "-json", "-statistics", "link", "show")):
                if device["ifname"].startswith(_DEVICE):
                    total += device["stats64"]["tx"]["dropped"]
        return total

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()
