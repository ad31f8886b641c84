"""Two machines that share a run by etcd, as real processes, for tests."""

import pathlib
import subprocess
import sys
import unittest

from cluster import COORDINATOR, MODEL, SYNC, Cluster, ended, free_port, get, hashes, wait_until
from etcd import Etcd

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "faults"))
from proxy import Proxy  # noqa: E402

RUN = (SYNC + 'run_name: "shared" '
       'train { steps: 90 optimizer: MUON } '
       'membership { start_workers: 2 max_workers: 2 lease_ms: 20000 } ')
FOR_EVER_S = 1e6
MAKE_CERTIFICATES = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "make_certificates"


class Machines(Cluster):
    """Two machines and etcd. The first reaches etcd, and is reached by the other one, through
    proxies; workers reach both directly."""

    def __init__(self, tls=False):
        super().__init__()
        self.config = self.folder / "run.textproto"
        self.config.write_text(MODEL + RUN)
        self.certificates = self.folder / "certificates"
        if tls:
            for words in (["init"], ["coordinator", "--ip", "127.0.0.1"], ["operator", "machine"]):
                subprocess.run([MAKE_CERTIFICATES, "--dir", self.certificates, *words], check=True,
                               stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, timeout=60)
        self.etcd = Etcd(self.folder, server=self.certificates / "coordinator" if tls else None,
                         client=self.client if tls else None)
        self.etcd_flags = self.tls_flags() if tls else []
        self.ports = [free_port(), free_port()]
        self.to_etcd = [Proxy(port) for port in self.etcd.clients]
        self.to_first = Proxy(self.ports[0])
        self.lives = 0

    def __exit__(self, *error):
        super().__exit__(*error)
        self.etcd.__exit__(*error)
        for proxy in self.to_etcd + [self.to_first]:
            proxy.stop()

    @property
    def client(self):
        return self.certificates / "operator-machine"

    def tls_flags(self):
        return [f"--etcd_ca={self.client / 'ca.pem'}", f"--etcd_cert={self.client / 'cert.pem'}",
                f"--etcd_key={self.client / 'key.pem'}"]

    def run_dir(self, node):
        return self.folder / f"node{node}"

    def share(self, node):
        self.lives += 1
        if node == 0:
            flags = [f"--advertise=127.0.0.1:{self.to_first.port}",
                     "--etcd=" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.to_etcd)]
        else:
            flags = [f"--etcd={self.etcd.addresses}"]
        process = self.start(
            f"node{node}-{self.lives}.log", COORDINATOR, "serve",
            f"--run_dir={self.run_dir(node)}", f"--config={self.config}",
            f"--listen=127.0.0.1:{self.ports[node]}", f"--standby_name=node{node}",
            "--snapshot_every_rounds=3", "--exit_when_finished", "--http=127.0.0.1:0",
            f"--http_address_file={self.http_file(node)}", *flags,
            *self.etcd_flags)
        return process

    def http_file(self, node):
        return self.folder / f"http{node}"

    def ask(self, node, path):
        """The answer's status and text."""
        return get(self.http_file(node).read_text().strip(), path)

    def both(self):
        """The first one leads, the second has everything."""
        first = self.share(0)
        wait_until(lambda: "listens on" in first.log() or first.child.poll() is not None,
                   "the first one serves")
        second = self.share(1)
        wait_until(lambda: "has everything: in sync" in first.log()
                   or None not in (first.child.poll(), second.child.poll()), "both are in sync")
        return first, second

    def start_workers(self, step_ms=40):
        address = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return [self.start_worker(f"worker-{i}", f"--min_step_time={step_ms}ms",
                                  address=address)
                for i in range(2)]

    def times(self, node, name):
        return [event["time"] for event in self.events(name, f"node{node}")]


class SharedRunTest(unittest.TestCase):
    def end(self, machines, workers, leader, process):
        ended(*workers, process)
        # Nobody was waited for in vain: each one said that it leaves.
        self.assertEqual(machines.times(leader, "worker_lost"), [])
        found = hashes(machines.run_dir(leader))
        self.assertEqual(len(found), 3 * 15)
        return found
