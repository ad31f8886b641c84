"""Three etcd processes on loopback, for tests. Debian's package etcd-server has the program."""

import pathlib
import shutil
import urllib.request

from cluster import SIGKILL, Process, free_port, wait_until

PROGRAM = shutil.which("etcd") or "/usr/bin/etcd"
MISSING = "skipped: there is no etcd here; Debian's package etcd-server has it"


def is_there():
    return pathlib.Path(PROGRAM).exists()


class Etcd:
    """Use as a context manager, in a folder that exists."""

    def __init__(self, folder, members=3):
        self.folder = folder
        self.clients = [free_port() for _ in range(members)]
        self.peers = [free_port() for _ in range(members)]
        self.processes = [self._start(i) for i in range(members)]
        wait_until(self._elected, "etcd has a leader")

    def _start(self, i):
        cluster = ",".join(f"n{j}=http://127.0.0.1:{port}" for j, port in enumerate(self.peers))
        return Process(
            self.folder / f"etcd{i}.log", PROGRAM, f"--name=n{i}",
            f"--data-dir={self.folder / f'etcd{i}'}", "--log-level=error",
            f"--listen-client-urls=http://127.0.0.1:{self.clients[i]}",
            f"--advertise-client-urls=http://127.0.0.1:{self.clients[i]}",
            f"--listen-peer-urls=http://127.0.0.1:{self.peers[i]}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{self.peers[i]}",
            f"--initial-cluster={cluster}", "--initial-cluster-state=new",
            f"--initial-cluster-token={self.folder.name}")

    def _elected(self):
        for process in self.processes:
            assert process.child.poll() is None, process.log()
        try:
            with urllib.request.urlopen(
                    f"http://127.0.0.1:{self.clients[0]}/health", timeout=1) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.child.poll() is None:
                process.signal(SIGKILL)
                process.child.wait()

    @property
    def addresses(self):
        return ",".join(f"127.0.0.1:{port}" for port in self.clients)
