"""Three etcd processes on loopback, for tests. Debian's package etcd-server has the program."""

import base64
import json
import pathlib
import shutil
import ssl
import sys
import unittest
import urllib.request

from cluster import SIGKILL, Process, free_port, wait_until

PROGRAM = shutil.which("etcd") or "/usr/bin/etcd"
MISSING = "skipped: there is no etcd here; Debian's package etcd-server has it"


def is_there():
    return pathlib.Path(PROGRAM).exists()


def main():
    """unittest.main of a program that needs etcd in all cases: ctest knows that status."""
    if not is_there():
        print(MISSING)
        sys.exit(77)
    unittest.main()


class Etcd:
    """Use as a context manager, in a folder that exists.

    `server`, `client`: folders of deploy/make_certificates. Clients must have a certificate then."""

    def __init__(self, folder, members=3, server=None, client=None):
        self.folder = folder
        self.server, self.client = server, client
        self.scheme = "https" if server else "http"
        self.clients = [free_port() for _ in range(members)]
        self.peers = [free_port() for _ in range(members)]
        self.processes = [self._start(i) for i in range(members)]
        wait_until(self._elected, "etcd has a leader")

    def _start(self, i):
        cluster = ",".join(f"n{j}=http://127.0.0.1:{port}" for j, port in enumerate(self.peers))
        return Process(
            self.folder / f"etcd{i}.log", PROGRAM, f"--name=n{i}",
            f"--data-dir={self.folder / f'etcd{i}'}", "--log-level=error",
            f"--listen-client-urls={self.scheme}://127.0.0.1:{self.clients[i]}",
            f"--advertise-client-urls={self.scheme}://127.0.0.1:{self.clients[i]}",
            f"--listen-peer-urls=http://127.0.0.1:{self.peers[i]}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{self.peers[i]}",
            f"--initial-cluster={cluster}", "--initial-cluster-state=new",
            f"--initial-cluster-token={self.folder.name}",
            *([f"--cert-file={self.server / 'cert.pem'}", f"--key-file={self.server / 'key.pem'}",
               "--client-cert-auth", f"--trusted-ca-file={self.server / 'ca.pem'}"]
              if self.server else []))

    def _elected(self):
        for process in self.processes:
            assert process.child.poll() is None, process.log()
        context = None
        if self.client:
            context = ssl.create_default_context(cafile=self.client / "ca.pem")
            context.load_cert_chain(self.client / "cert.pem", self.client / "key.pem")
        try:
            with urllib.request.urlopen(f"{self.scheme}://127.0.0.1:{self.clients[0]}/health",
                                        timeout=1, context=context) as answer:
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

    def _ask(self, path, **body):
        """Of the JSON gateway to etcd's gRPC."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.clients[0]}/v3/{path}", data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def ask_for_users(self, name, password, prefix):
        """From now on it lets in this user alone, to the keys that begin with `prefix`."""
        def encoded(text):
            return base64.b64encode(text.encode()).decode()
        self._ask("auth/user/add", name="root", password=password + "-of-root")
        self._ask("auth/role/add", name="root")
        self._ask("auth/user/grant", user="root", role="root")
        self._ask("auth/user/add", name=name, password=password)
        self._ask("auth/role/add", name=name)
        self._ask("auth/role/grant", name=name, perm={
            "permType": "READWRITE", "key": encoded(prefix),
            "range_end": encoded(prefix[:-1] + chr(ord(prefix[-1]) + 1))})
        self._ask("auth/user/grant", user=name, role=name)
        self._ask("auth/enable")

    @property
    def addresses(self):
        return ",".join(f"127.0.0.1:{port}" for port in self.clients)
