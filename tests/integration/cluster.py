"""Real processes for tests: a coordinator and workers on loopback, small enough for seconds."""

import json
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("CAUSEWAY_BIN", ROOT / "build/release/bin"))
COORDINATOR = BIN / "causeway-coordinator"
WORKER = BIN / "causeway-worker"
CTL = BIN / "causewayctl"
DEADLINE_S = 120

MODEL = """
model { layers: 2 width: 32 heads: 2 mlp_width: 64 sequence_length: 32 qk_norm: true }
train { batch_sequences: 2 seed: 5 evaluation_sequences: 8 }
"""
# Settings over MODEL.
SYNC = """
sync { fragments: 2 steps_between_syncs: 6 overlap_steps: 2 mixing: 0.5
       codec_up: LM2 codec_down: LM2 error_feedback: true }
"""
WORDS = "the bridge carries a stone over water and wind slowly home again".split()


def run_tool(*command, timeout=None, variables=None, cwd=None):
    """Runs a program to its end; returns (exit status, standard output, standard error)."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True,
        timeout=DEADLINE_S if timeout is None else timeout,
        stdin=subprocess.DEVNULL, cwd=cwd, env={**os.environ, **(variables or {})})
    return done.returncode, done.stdout, done.stderr


def output_of(*command, **how):
    """What a program prints that ends without an error."""
    status, output, error = run_tool(*command, **how)
    assert status == 0, error
    return output


def refusal_of(*command, status=2, **how):
    """What a program says that ends with that status."""
    found, _, error = run_tool(*command, **how)
    assert found == status, error
    return error


def run_python(*words, variables=None, **how):
    """As run_tool, this Python with this package."""
    return run_tool(sys.executable, "-B", *words, **how,
                    variables={"PYTHONPATH": ROOT / "worker" / "python", **(variables or {})})


def folder_of(test):
    """A folder that is there until a test ends."""
    folder = tempfile.TemporaryDirectory(prefix="causeway_")
    test.addCleanup(folder.cleanup)
    return pathlib.Path(folder.name)


def wait_until(condition, what, deadline_s=DEADLINE_S):
    """Polls an outside fact (a file of another process); fails loudly when it never comes."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline_s} s in vain until {what}")
        time.sleep(0.02)


def get(address, path):
    """(status, body) of a GET."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def write_safetensors(path, tensors):
    """tensors: (dtype, shape, bytes) by name."""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


_ports = []  # What keeps other tests off the ports that this process was given.


def has_ipv6():
    """Whether this machine has the address ::1."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def free_port():
    """A port that nobody has and no other test is given while this process lives. It is none of those that the
    kernel gives to whoever asks for any: a test that binds it later would find it taken now and then."""
    end = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(10000, end), end - 10000):
        kept = socket.socket(socket.AF_UNIX)
        try:
            kept.bind(f"\0causeway-test-port-{port}")
            with socket.socket() as probe:
                probe.bind(("", port))
        except OSError:
            kept.close()
            continue
        _ports.append(kept)
        return port
    raise AssertionError("no port below net.ipv4.ip_local_port_range is free")


def json_lines(path):
    if not path.exists():
        return []
    complete = path.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in complete.split("\n") if line]


def hashes(run_dir):
    """(fragment, round) -> hash, as the coordinator of that folder recorded it."""
    return {(row["fragment"], row["round"]): row["published_hash"] for row in json_lines(run_dir / "rounds.jsonl")}


def text(words):
    """What it says does not matter."""
    return " ".join(WORDS[(i * i + i // 7) % len(WORDS)] for i in range(words))


def make_data(folder, words=20000, bin_folder=BIN):
    """Token shards of a text of bytes, in a folder below this one."""
    shards = folder / "data"
    (folder / "text.txt").write_text(text(words))
    output_of(bin_folder / "causeway-worker", "tokenize", f"--input={folder / 'text.txt'}", f"--out={shards}")
    return shards


class Process:
    """A child with its errors in a file, and its output there or in one of its own."""

    def __init__(self, log, *command, variables=None, output=None):
        self.log_path = log
        with open(log, "ab") as errors, open(output or log, "ab") as said:
            self.child = subprocess.Popen(
                [str(part) for part in command], stdout=said, stderr=errors,
                stdin=subprocess.DEVNULL, env={**os.environ, **(variables or {})})

    def cpu_s(self):
        """Of a running process, all its threads."""
        fields = pathlib.Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def log(self):
        return self.log_path.read_text(errors="replace")

    def wait(self):
        return self.child.wait(timeout=DEADLINE_S)

    def refusal(self, status=2):
        """What it says; it ends with that status."""
        assert self.wait() == status, self.log()
        return self.log()

    def signal(self, number):
        self.child.send_signal(number)

    def kill(self):
        self.signal(SIGKILL)
        self.wait()

    def stop(self):
        """It is told to end, and ends without an error."""
        self.signal(SIGTERM)
        ended(self)


def ended(*processes):
    """Waits for processes that end without an error."""
    for process in processes:
        assert process.wait() == 0, process.log()


class Cluster:
    """A folder with data, a coordinator and workers. Use as a context manager."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="causeway_cluster_"))
        self.processes = []
        self.coordinator = None

    def __enter__(self):
        return self

    def serving(self, *arguments, **named):
        """This one with its coordinator, which start_coordinator starts so; to be a context manager."""
        try:
            self.begin(*arguments, **named)
        except BaseException:
            self.__exit__()
            raise
        return self

    def begin(self, *arguments, **named):
        self.start_coordinator(*arguments, **named)

    def __exit__(self, *_):
        for process in self.processes:
            if process.child.poll() is None:
                process.child.kill()
                process.child.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def data(self):
        folder = self.folder / "data"
        return folder if folder.exists() else make_data(self.folder)

    @property
    def address(self):
        return (self.folder / "address").read_text().strip()

    @property
    def http_address(self):
        """Of the coordinator's HTTP port; start_coordinator waits until it is served."""
        return (self.folder / "http_address").read_text().strip()

    def out(self, worker):
        return self.folder / worker

    def start_coordinator(self, settings, *flags, model=MODEL):
        config = self.folder / "run.textproto"
        config.write_text(model + settings)
        return self.start_serving(f"--config={config}", "--exit_when_finished", *flags)

    def start_serving(self, *flags):
        """At addresses of its own choice; returns once it listens."""
        for name in ("address", "http_address"):  # Of one before it.
            (self.folder / name).unlink(missing_ok=True)
        self.coordinator = self.start(
            "coordinator.log", COORDINATOR, "serve", f"--run_dir={self.folder / 'coordinator'}",
            "--listen=127.0.0.1:0", f"--address_file={self.folder / 'address'}",
            "--http=127.0.0.1:0", f"--http_address_file={self.folder / 'http_address'}", *flags)
        wait_until(
            lambda: (self.folder / "address").exists() or self.coordinator.child.poll() is not None,
            "the coordinator listens")
        assert self.coordinator.child.poll() is None, self.coordinator.log()
        return self.coordinator

    def start_worker(self, worker, *flags, address=None, variables=None, program=WORKER):
        return self.start(
            f"{worker}.log", program, "train", f"--coordinator={address or self.address}",
            f"--id={worker}", f"--data={self.data}", f"--out={self.out(worker)}", "--threads=1",
            *flags, variables=variables)

    def start(self, log, *command, variables=None):
        process = Process(self.folder / log, *command, variables=variables)
        self.processes.append(process)
        return process

    def steps(self, worker):
        lines = json_lines(self.out(worker) / "metrics.jsonl")
        return max((line["step"] for line in lines if line["kind"] == "step"), default=0)

    def wait_for_step(self, worker, step):
        wait_until(lambda: self.steps(worker) >= step, f"{worker} has done step {step}")

    def events(self, name=None, who="coordinator"):
        """Those of that name, if one is given."""
        return [e for e in json_lines(self.folder / who / "events.jsonl") if name in (None, e["event"])]

    def wait_for_event(self, name, /, **fields):
        """Until such an event is there whose fields have these values."""
        wait_until(lambda: any(fields.items() <= e.items() for e in self.events(name)), f"event {name} {fields or ''}")

    def rounds(self):
        return json_lines(self.folder / "coordinator" / "rounds.jsonl")

    def published(self, who="coordinator"):
        return hashes(self.folder / who)

    def summary(self, who="coordinator"):
        return json.loads((self.folder / who / "summary.json").read_text())


SIGTERM = signal.SIGTERM
SIGKILL = signal.SIGKILL
