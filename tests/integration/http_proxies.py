"""nginx and haproxy between a worker and its coordinator, for tests: HTTP/2 on both sides, on loopback, without root.
Debian's packages nginx and haproxy have the programs."""

import os
import pathlib
import re
import shutil
import socket
import subprocess

from cluster import free_port, wait_until

SBIN = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
LINKS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "links.md"
# As many seconds as an operator forgets to set.
SILENCE_S = 60
NGINX = """
http {
  client_max_body_size BODY;
  server {
    listen LISTEN http2;
    location / {
      grpc_pass grpc://TARGET;
      grpc_read_timeout SILENCE;
    }
  }
}
"""
HAPROXY = """
defaults
  mode http
  timeout connect 5s
  timeout client SILENCE
  timeout server SILENCE
frontend workers
  bind LISTEN proto h2
  default_backend coordinator
backend coordinator
  server coordinator TARGET proto h2
"""


def program(name):
    """(its path, variables that it needs), or None: it is not here, or lacks libraries."""
    path = shutil.which(name, path=SBIN)
    if path is None:
        return None
    # Unpacked by tests/run: its libraries lie beside it.
    libraries = [str(folder) for folder in pathlib.Path(path).parents[1].glob("lib/*-linux-gnu")]
    variables = {} if path.startswith("/usr/") else {"LD_LIBRARY_PATH": ":".join(libraries)}
    works = subprocess.run([path, "-v"], capture_output=True, env={**os.environ, **variables})
    return (path, variables) if works.returncode == 0 else None


def documented(page_section, language):
    """The configuration in docs/links.md."""
    text = LINKS.read_text().partition(f"## {page_section}\n")[2].partition("\n## ")[0]
    return re.search(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[1]


class HttpProxy:
    """One of `nginx` and `haproxy`, from its start until the cluster's end."""

    def __init__(self, cluster, kind, target, **settings):
        """target: HOST:PORT. settings: `silence` in seconds, nginx's `body`; `text`, another configuration with LISTEN
        and TARGET in it."""
        self.cluster = cluster
        self.kind = kind
        self.target = target
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.folder = cluster.folder / f"{kind}-{self.port}"
        self.folder.mkdir()
        self.config = self.folder / "proxy.conf"
        path, variables = program(kind)
        self.configure(**settings)
        self.command = ([path, "-e", self.folder / "error.log", "-p", self.folder, "-c", self.config]
                        if kind == "nginx" else [path, "-db", "-f", self.config])
        self.variables = variables
        self._start()

    def _start(self):
        self.process = self.cluster.start(f"{self.kind}-{self.port}.log", *self.command, variables=self.variables)
        wait_until(lambda: self._listens() or self.process.child.poll() is not None, f"{self.kind} listens")
        assert self.process.child.poll() is None, self.process.log()

    def configure(self, silence=SILENCE_S, body="0", text=None):
        text = text or (NGINX if self.kind == "nginx" else HAPROXY)
        for name, value in (("LISTEN", self.address), ("TARGET", self.target), ("SILENCE", f"{silence}s"),
                            ("BODY", body)):
            text = text.replace(name, value)
        if self.kind == "nginx":
            places = "".join(f"{name}_temp_path {self.folder / name};\n"
                             for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
            text = (f"daemon off; master_process off; pid {self.folder}/pid; events {{ }}\n"
                    + text.replace("http {", "http {\naccess_log off;\n" + places, 1))
        self.config.write_text(text)

    def reconfigure(self, **settings):
        """Starts it anew with these: calls that are under way break."""
        self.process.child.kill()
        self.process.child.wait()
        self.configure(**settings)
        self._start()

    def _listens(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
