"""docs/troubleshooting.md against the programs: every message of the page is provoked here and compared
with the page, letter by letter, or stands in ELSEWHERE with the reason why not. So are some messages that
say what to do, and so need not stand there."""

import ast
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import unittest

from cluster import COORDINATOR, CTL, MODEL, SIGKILL, WORKER, Cluster, run_tool, wait_until
from security_test import make, tls, with_certificates

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md").read_text()
ROWS = [message for line in re.findall(r"^- (`[^`]+`(?:, `[^`]+`)*): ", PAGE[:PAGE.index("\n## Messages of others")],
                                       re.MULTILINE)
        for message in re.findall(r"`([^`]+)`", line)]
RUN = "train { steps: 100000 } sync { steps_between_syncs: 6 } membership { start_workers: 1 }"
PACE = "--max_tokens_per_second=6400"
NOBODY = 65534

# Messages that this test leaves alone.
ELSEWHERE = {
    "two releases": [
        "... has another configuration than the run: choose another --out",
        "... hashes to ..., recorded is ...",
        "the coordinator speaks wire version ...", "wire_version differs: ...",
        "the coordinator's configuration does not hash to what it announces"],
    "a GPU, or a build without CUDA (tests/unit/worker/commands, tests/unit/worker/backend/cuda)": [
        "no GPU can be used: ...", "this program was built without CUDA",
        "there is no GPU ...: this machine has ...",
        "training on a GPU needs NVIDIA's cuBLASLt, which was not found",
        "... which ... cannot share evenly",
        "the GPU cannot be used any more by this process", "--attention=cudnn: ..."],
    "a long or thin link (tests/wan)": [
        "... runs at ... of the at most ... Mbit/s that ... connection"],
    "broken memory, full memory, or a process that stands still for long (tests/unit)": [
        "the published copy hashes to ..., the coordinator's to ...",
        "no room for another ... bytes: ... are taken by objects that are being received; try again later",
        "the worker does not read its session", "the coordinator did not welcome this worker",
        "nothing moved for too long", "nothing came for ..."],
    "several processes (tests/integration/site_processes_test.py)": [
        "process 0 of this site waited ... for others", "... of this site did not reach process 0 at ...",
        "process 0 at ... has another site secret than this one",
        "...turned process ... away: ...",
        "... it runs another build of this program ...",
        "... it has ..., process 0 ...: give all of them the same flags",
        "the connection to ... is lost (...): has it ended?", "rank ...: ..."],
    "a run of any model (tests/integration/any_model_test.py, tests/unit/server/core)": [
        "a run of tensors begins with values that are given, and ... has none",
        '... the tensor "..." is ...; F32, BF16 and F16 are read',
        "this is a run of tensors (...", "this run waits for the first site to bring its model",
        "the run waits for the first site to bring its model"],
    "a proxy (tests/integration/proxies_test.py, tests/unit/common/rpc)": [
        "a proxy on the way ...", "whatever answers there is no coordinator", "no coordinator's own answer: ..."],
    "a member that lies, a broken disk or a copy of a run (tests/security, tests/unit/server)": [
        "the certificate of ... ended at ...",
        "ended a connection from ...: ...",
        "this token was not on the coordinator's list of tokens when ...",
        "..., the fragment takes ... at most (membership.norm_cap)",
        "... tokens: it counts for ..., more it cannot have trained",
        "...; nobody gets beyond step ... before the rounds that are open are published",
        "...: it serves an old copy of the run directory, or another coordinator has taken over",
        "... was taken against ..., published here is ...",
        "...; recovered from what was saved before it"],
}


def pattern(row):
    return ".*".join(re.escape(piece) for piece in row.split("..."))


class TroubleshootingTest(unittest.TestCase):
    """In the order of the page."""

    def says(self, output, *rows):
        """That the output has the message of one of these rows."""
        self.assertTrue([row for row in rows if re.search(pattern(row), output)],
                        f"none of {rows} in:\n{output}")

    def test_every_message_of_the_page_is_here(self):
        here = {node.value for node in ast.walk(ast.parse(pathlib.Path(__file__).read_text()))
                if isinstance(node, ast.Constant)}
        self.assertEqual([], [row for row in ROWS if row not in here])
        self.assertEqual([], [row for rows in ELSEWHERE.values() for row in rows if row not in ROWS])

    def refused(self, *command, row, status=2):
        """Returns what it says, and that on standard error alone."""
        found, output, error = run_tool(*command)
        self.assertEqual((found, output), (status, ""), error)
        self.says(error, *([row] if isinstance(row, str) else row))
        self.assertNotIn("Check failed", error)
        self.assertLessEqual(len([line for line in error.splitlines() if line.strip() and " info: " not in line]), 3, error)
        return error

    def serve(self, cluster, text, *flags, row, status=2):
        config = cluster.folder / "bad.textproto"
        config.write_text(text)
        self.refused(COORDINATOR, "serve", f"--run_dir={cluster.folder / 'bad'}", f"--config={config}",
                     "--listen=127.0.0.1:0", "--http=off", *flags, row=row, status=status)
        self.assertFalse((cluster.folder / "bad" / "run.db").exists())

    def train(self, cluster, row, *flags, status=2, **values):
        values = {"coordinator": cluster.address if cluster.coordinator else "127.0.0.1:1", "id": "w",
                  "data": cluster.data, "out": cluster.folder / "w", "connect_timeout": "3s"} | values
        self.refused(WORKER, "train", *[f"--{name}={value}" for name, value in values.items()], *flags,
                     row=row, status=status)

    def test_starting(self):
        with Cluster() as cluster:
            self.refused(WORKER, "train", "--no_such=3", row="unknown flag ...")
            self.refused(WORKER, "train", "--prompt=a", row="... takes no --..., which is for ...")
            flags = cluster.folder / "flags"
            flags.write_text("threads=2\n")
            self.refused(WORKER, "train", f"--flagfile={flags}", row="... is no --flag=value")
            self.refused(WORKER, "train", "--id", row="... needs a value")
            self.refused(WORKER, "train", "--threads=many", row='... does not take "..."')
            self.train(cluster, 'expected HOST:PORT, for example 127.0.0.1:7070; got "..."', coordinator="here")
            self.refused(COORDINATOR, "serve", f"--run_dir={cluster.folder / 'new'}", "--listen=127.0.0.1:0",
                         row="give the run's configuration: --config=FILE")
            self.serve(cluster, "trian { steps: 3 }",
                       row="... (expected a textproto of RunConfig; proto/causeway/v1/config.proto has the fields)")
            self.serve(cluster, MODEL + "sync { overlap_steps: 100 }", row="... must be ...; it is ...")
            self.serve(cluster, 'model { preset: "giant" }', row='model.preset: there is no "..."')
            self.serve(cluster, MODEL, "--preset=fastest", row='preset: there is no "..."')
            self.serve(cluster, MODEL + RUN, "--http=192.0.2.1:7071",
                       row="no interface of this machine has the address of ...", status=1)
            self.serve(cluster, 'model { preset: "tiny-1m" }' + RUN, "--memory_mb=2",
                       row="the memory for transfers is ... bytes, of which ... are for objects that are being "
                           "received; the largest one has ...")
            self.serve(cluster, MODEL + RUN, "--congestion_control=nosuch", row="--congestion_control=...: ...")
            few = ["prlimit", "--nofile=64:64"]
            config = cluster.folder / "bad.textproto"
            self.refused(*few, COORDINATOR, "serve", f"--run_dir={cluster.folder / 'bad'}",
                         f"--config={config}", "--listen=127.0.0.1:0",
                         row="... connections and the store need ... open files, and this process may open ...")

    def test_starting_beside_others(self):
        with Cluster().serving(RUN) as cluster:
            run_dir, config = cluster.folder / "coordinator", cluster.folder / "run.textproto"
            again = [COORDINATOR, "serve", f"--run_dir={run_dir}", f"--config={config}", "--listen=127.0.0.1:0"]
            self.assertIn(str(cluster.coordinator.child.pid), self.refused(
                *again, row="... belongs to another process (pid ...", status=1))
            for listen in (cluster.address, "192.0.2.1:7070"):
                self.serve(cluster, MODEL + RUN, f"--listen={listen}",
                           row="cannot listen on ... (...): the host is not this machine's, or the port is taken or "
                               "not allowed", status=1)
            taken = "another program listens on ...: choose another port, or port 0 for any that is free"
            self.serve(cluster, MODEL + RUN, f"--http={cluster.http_address}", row=taken, status=1)
            self.train(cluster, taken, metrics=cluster.http_address, status=1)
            self.refused("env", "TMPDIR=/proc", COORDINATOR, "inspect", f"--run_dir={run_dir}", status=1,
                         row="cannot create the folder ...: ...; set TMPDIR to one that can be written")
            cluster.coordinator.stop()  # It did not notice.
            config.write_text(MODEL + RUN + "train { warmup_steps: 7 }")
            self.assertIn("train.warmup_steps", self.refused(
                *again, row="the run ... in ... has another configuration than the one given: ..."))

    def test_joining(self):
        with Cluster() as cluster:
            self.train(cluster, "no coordinator answers at ... within ...", status=1)
            self.train(cluster, ["no address is known for ...", "the resolver has no answer for ..."],
                       "--insecure", coordinator="no-such-host.invalid:7070", status=1)
            cluster.start_coordinator(RUN + " membership { max_workers: 1 lease_ms: 2000 }", "--noexit_when_drained")
            first = cluster.start_worker("a", PACE)
            cluster.wait_for_step("a", 3)
            # Not 2, which a supervisor leaves alone: its former process is missed, a place becomes free.
            self.train(cluster, "a live worker has the id ...", id="a", connect_timeout="1s", status=1)
            self.train(cluster, "the run has its ... workers (membership.max_workers)", id="b", status=1)
            first.stop()
            metrics = (cluster.out("a") / "metrics.jsonl").read_text()
            self.train(cluster, "... belongs to worker ... of run ..., not to worker ...", id="b",
                       out=cluster.out("a"))
            self.assertEqual((cluster.out("a") / "metrics.jsonl").read_text(), metrics)

    def test_two_processes_of_one_worker(self):
        with Cluster().serving(RUN + " membership { lease_ms: 1000 }") as cluster:
            first = cluster.start_worker("a", PACE)
            cluster.wait_for_step("a", 3)
            first.signal(signal.SIGSTOP)
            cluster.wait_for_event("worker_lost", worker="a")
            self.says(cluster.coordinator.log(), "worker ... was silent for ... ms and is taken for dead")
            first.signal(signal.SIGCONT)
            silent = "... was silent longer than its lease; attach again to go on"
            wait_until(lambda: re.search(pattern(silent), first.log() + cluster.coordinator.log()), "it is told")
            wait_until(lambda: len(cluster.events("worker_joined")) == 2, "it is back by itself")
            first.signal(signal.SIGSTOP)
            wait_until(lambda: len(cluster.events("worker_lost")) == 2, "it is lost")
            second = cluster.start("second.log", WORKER, "train", f"--coordinator={cluster.address}", "--id=a",
                                   f"--data={cluster.data}", f"--out={cluster.folder / 'second'}", "--threads=1")
            wait_until(lambda: len(cluster.events("worker_joined")) == 3, "the second one has joined")
            first.signal(signal.SIGCONT)
            self.assertNotEqual(first.wait(), 0)
            self.says(first.log(), "incarnation ... of ... is fenced off: incarnation ... has attached")
            self.assertIsNone(second.child.poll(), second.log())

    def test_another_run_at_the_address(self):
        with Cluster().serving(RUN) as cluster:
            address = cluster.address
            worker = cluster.start_worker("a", PACE)
            cluster.wait_for_step("a", 3)
            cluster.coordinator.kill()
            over = "the session of worker ... is over (...); its membership is kept until its lease ends"
            for name in ("coordinator", "address", "http_address"):
                path = cluster.folder / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            cluster.start_coordinator(RUN + " train { seed: 9 }", f"--listen={address}")
            row = "the worker belongs to another run"
            wait_until(lambda: re.search(pattern(row), worker.log()), "the worker has found another run")
            self.says(worker.log(), row)
            worker.signal(SIGKILL)
            other = cluster.start_worker("b", PACE)
            cluster.wait_for_step("b", 3)
            other.signal(SIGKILL)
            wait_until(lambda: re.search(pattern(over), cluster.coordinator.log()), "the session is missed")
            self.says(cluster.coordinator.log(), over)

    def test_certificates(self):
        with Cluster() as cluster:
            with_certificates(cluster, "a", "b")
            for arguments in (["worker", "old", "--start", "3 days ago", "--days", "1"],
                              ["worker", "new", "--start", "now + 3 days"], ["worker", "c", "--run", "elsewhere"],
                              ["observer", "eye"]):
                make(cluster, *arguments)
            make(cluster, "init", folder="other")
            make(cluster, "worker", "b", folder="other")
            self.serve(cluster, MODEL + RUN, "--listen=0.0.0.0:0", "--tls=off",
                       row="... is not on this machine's loopback, and there are no certificates")
            cluster.start_coordinator(RUN, *tls(cluster, "coordinator"))
            with Cluster().serving(RUN) as plain:
                self.train(cluster, "... does not speak TLS: start the coordinator with --tls_cert and --tls_key",
                           *tls(cluster, "worker-a"), id="a", coordinator=plain.address)
            self.train(cluster, "the coordinator at ... speaks TLS, and this worker has no certificates")
            b, other = tls(cluster, "worker-b"), tls(cluster, "worker-b", "other")
            self.train(cluster, "the coordinator at ... cannot be trusted: ...", *other, id="b")
            self.train(cluster, "the coordinator at ... has a certificate for ..., not for ...", *b,
                       "--tls_server_name=elsewhere", id="b")
            self.train(cluster, "the coordinator at ... hangs up as soon as it has seen ...", b[0], *other[1:], id="b")
            self.train(cluster, "the certificate ... expired at ...", *tls(cluster, "worker-old"), id="old")
            self.train(cluster, "... is valid from ... on, and this machine's clock says ...: set the clock",
                       *tls(cluster, "worker-new"), id="new", status=1)
            self.train(cluster, "... is not the private key of ...", *b[:2], tls(cluster, "worker-a")[2], id="b")
            self.train(cluster, "no authority in ... stands behind ...", other[0], *b[1:], id="b")
            self.train(cluster, "--tls_cert is that of ..., and --id is ...", *b, id="z")
            self.train(cluster, "... is one of the run ..., and this run is ...", *tls(cluster, "worker-c"), id="c")
            self.refused(CTL, "pause", *tls(cluster, "observer-eye"), f"--coordinator={cluster.address}",
                         row="... asked to ...: ...", status=1)
            key = cluster.folder / "certificates" / "worker-a" / "key.pem"
            key.chmod(0o644)
            self.train(cluster, "... can be read or written by everybody on this machine: chmod 600 ...",
                       *tls(cluster, "worker-a"), id="a")

    def test_several_processes(self):
        with Cluster() as cluster:
            train = [WORKER, "train", "--id=a", "--coordinator=127.0.0.1:1", f"--data={cluster.data}", "--out=x",
                     "--device=cpu"]
            self.refused("env", "RANK=0", *train, row="... is not set, but RANK or WORLD_SIZE is")
            instead = "start one process with --threads, or each as a worker with an --id of its own"
            for rank in (0, 1):
                self.assertIn(instead, self.refused(
                    "env", f"RANK={rank}", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1",
                    "MASTER_ADDR=localhost", "MASTER_PORT=1", *train,
                    row="WORLD_SIZE is ..., and this process has no GPU..."))

    @unittest.skipIf(os.geteuid() != 0, "another user can only be tried by root")
    def test_a_service_of_another_user(self):
        with Cluster() as cluster:
            with_certificates(cluster, "a")
            for path in (cluster.folder, cluster.data, *(cluster.folder / "certificates").glob("**/")):
                path.chmod(0o755)
            self.refused("setpriv", f"--reuid={NOBODY}", "--clear-groups", WORKER, "train",
                         *tls(cluster, "worker-a"), "--id=a", "--coordinator=127.0.0.1:1", f"--data={cluster.data}",
                         "--out=x",
                         row="...; the user of this process must be able to read it")

    def test_tokens(self):
        with Cluster() as cluster:
            with_certificates(cluster)
            for name in ("a", "b"):
                make(cluster, "token", "worker", name)
            folder = cluster.folder / "certificates"

            def token(name):
                return [f"--tls_ca={folder / 'ca.pem'}", f"--token_file={folder / f'token-worker-{name}' / 'token'}"]
            cluster.start_coordinator(RUN, *tls(cluster, "coordinator")[1:], f"--token_file={folder / 'tokens'}")
            self.train(cluster, 'worker ... asked to ... as worker "..."', *token("b"), id="a")
            self.train(cluster, "--token_file without TLS: tokens are never sent in the clear", token("a")[1], id="a")
            stale = folder / "token-worker-a" / "token"
            kept = stale.read_bytes()
            make(cluster, "token", "worker", "a", "--force")
            stale.write_bytes(kept)
            self.train(cluster, "this token is not on the coordinator's list of tokens", *token("a"), id="a",
                       connect_timeout="1s", status=1)
            self.train(cluster, "the token is unknown or was revoked", *token("a"), id="a", connect_timeout="1m")

    def test_too_much_of_one_peer(self):
        with Cluster() as cluster, contextlib.ExitStack() as crowd:
            with_certificates(cluster)
            make(cluster, "operator", "o")
            cluster.start_coordinator(RUN, *tls(cluster, "coordinator"), "--max_requests_per_second=1",
                                      "--max_connections_per_address=3")
            row = "more than ... requests and messages per second: try again later, or raise " \
                  "--max_requests_per_second"
            to = [*tls(cluster, "operator-o"), f"--coordinator={cluster.address}"]
            # What looks again and again says so, and goes on.
            watch = cluster.start("watch.log", CTL, "watch", "--interval=100ms", *to)
            wait_until(lambda: watch.log().count("; looking again\n") > 20, "it is refused again and again")
            lines = [line for line in watch.log().splitlines() if line.endswith("; looking again")]
            self.assertEqual([], [line for line in lines if not re.search(pattern(row) + "; looking", line)])
            asked = []
            wait_until(lambda: asked.append(run_tool(CTL, "status", *to)) or asked[-1][0] != 0, "one is refused")
            self.assertEqual(asked[-1][0], 1)
            self.says(asked[-1][2], row)
            self.assertIsNone(watch.child.poll())
            watch.signal(signal.SIGINT)
            self.assertEqual(watch.wait(), 0)
            host, _, port = cluster.address.rpartition(":")
            for _ in range(5):
                crowd.enter_context(socket.create_connection((host, int(port))))
            many = "... connections of its address are open (--max_connections_per_address)"
            wait_until(lambda: re.search(pattern(many), cluster.coordinator.log()), "it is said")
            self.says(cluster.coordinator.log(), many)

    def test_data(self):
        with Cluster().serving(RUN + " membership { max_workers: 4 }") as cluster:
            shards = cluster.folder / "shards"
            self.train(cluster, "there is no data folder ...", data=shards)
            shards.mkdir()
            self.train(cluster, "there are no training shards (train_*.bin) in ...", data=shards)
            (shards / "unfinished").mkdir()
            self.train(cluster, "the data in ... are not finished (...): wait for", data=shards, status=1)
            (shards / "unfinished").rmdir()
            (shards / "train_0.bin").write_bytes(bytes(range(1, 256)) * 8)
            self.train(cluster, "... may be uint16 or uint32 tokens, or something else", data=shards)
            for file in cluster.data.iterdir():
                shutil.copy(file, shards)
            (shards / "train_0.bin").unlink()
            first = shards / "train_000000.bin"
            whole = first.read_bytes()
            first.write_bytes(whole[:-10])
            self.train(cluster, "... is damaged: its header promises ... tokens", data=shards)
            cluster.start_worker("a", PACE)
            cluster.wait_for_step("a", 1)
            first.write_bytes(whole[:1024] + bytes(len(whole) - 1024))
            self.train(cluster, "workers that share the data need the same training shards", data=shards)
            text = cluster.folder / "small.txt"
            text.write_text("x")
            self.refused(WORKER, "tokenize", f"--input={text}", f"--out={cluster.folder / 'small'}",
                         row="the corpus has ... bytes, too few to hold out a part of ...")
            self.refused(WORKER, "tokenize", f"--input={shards}", f"--out={cluster.folder / 'small'}",
                         "--extensions=.txt", row="there is no text in ...")
            lines = cluster.folder / "lines.jsonl"
            lines.write_text('{"text": "x"}\n')
            self.refused(WORKER, "tokenize", f"--input={lines}", f"--out={cluster.folder / 'small'}",
                         row="... are JSON Lines, whose documents python3 -m causeway.tokenize reads")
            (cluster.folder / "config.json").write_text("{}")
            self.refused(WORKER, "eval", f"--checkpoint={cluster.folder}", "--data=x",
                         row="... is a checkpoint of Hugging Face's: python3 -m causeway.huggingface import")

    def test_data_that_do_not_fit_the_run(self):
        for settings, row in (
                ("model { vocabulary_size: 300 }",
                 "the data in ... has a vocabulary of ... tokens, the run's model has ..."),
                ("membership { max_workers: 4096 }",
                 "the ... training tokens in ... make ... windows of ... tokens; the run needs ...")):
            with Cluster().serving(RUN + settings) as cluster:
                self.train(cluster, row)
        with Cluster() as cluster:
            bare = cluster.folder / "bare"
            bare.mkdir()
            for name in ("train_000000.bin", "held_out_000000.bin"):
                shutil.copy(cluster.data / name, bare)
            cluster.start_coordinator(RUN + "train { document_masking: true }")
            self.train(cluster, "train.document_masking needs to know where documents begin", data=bare)

    def test_while_it_trains(self):
        with Cluster().serving(
            RUN.replace("start_workers: 1", "start_workers: 2 outlier_factor: 1.000001 lease_ms: 60000")) as cluster:
            first, second = [cluster.start_worker(name, PACE) for name in ("a", "b")]
            guard = "the delta of worker ... has the norm ..., the median of the last ones is ..."
            wait_until(lambda: re.search(pattern(guard), cluster.coordinator.log()), "some delta is larger")
            self.says(cluster.coordinator.log(), guard)
            second.signal(signal.SIGSTOP)

            def rounds():
                return run_tool(CTL, "rounds", f"--coordinator={cluster.address}")[1]
            wait_until(lambda: "waiting for b" in rounds(), "a round waits for b")
            self.says(rounds(), "waiting for ...")
            second.signal(signal.SIGCONT)
            self.assertIsNone(first.child.poll(), first.log())

    def test_two_sites_that_look_at_their_links(self):
        with Cluster().serving(RUN) as cluster:
            look = [WORKER, "preflight", f"--coordinator={cluster.address}", "--threads=1"]
            busy = "another link is being measured: try again in ..."

            # One is stopped amidst its measurement, as its terminal shows; the other one meets it there.
            screen, terminal = os.openpty()
            with subprocess.Popen([*look, "--probe_seconds=10"], stdout=subprocess.DEVNULL, stderr=terminal) as slow:
                os.close(terminal)
                shown = ""
                while not re.search(r"measuring the rate up: [^\r]+/s", shown):
                    shown += os.read(screen, 1000).decode()
                slow.send_signal(signal.SIGSTOP)
                said = run_tool(*look, "--probe_seconds=0.2")[1]
                slow.kill()
            os.close(screen)
            self.says(said, busy)

    def test_the_runs_folder(self):
        with Cluster().serving(RUN, "--snapshot_every_rounds=2") as cluster:
            run = cluster.folder / "coordinator"
            database = run / "run.db"
            self.refused(COORDINATOR, "inspect", f"--run_dir={cluster.data}", status=1,
                         row="... holds no run: there is no ...")
            self.refused(WORKER, "export", f"--run_dir={run}", f"--out={cluster.folder / 'model'}",
                         row="... has no saved state of fragment ... yet")
            worker = cluster.start_worker("a", PACE)
            cluster.wait_for_step("a", 3)
            cluster.coordinator.stop()
            early = cluster.folder / "early.db"
            shutil.copy(database, early)
            again = [COORDINATOR, "serve", f"--run_dir={run}", f"--listen={cluster.address}", "--http=off"]
            later = cluster.start("later.log", *again)
            cluster.wait_for_step("a", 60)
            for process in (worker, later):
                process.stop()
            late = cluster.folder / "late.db"
            shutil.copy(database, late)

            def refused(row):
                self.refused(*again, row=row)
                shutil.copy(late, database)
            shutil.copy(early, database)
            refused("... has lost commits: it ends with commit ...")
            with contextlib.closing(sqlite3.connect(database)) as connection:
                connection.execute("PRAGMA user_version = 7")
            refused("... has format version ...; this program reads version ...")
            with database.open("r+b") as file:
                file.seek(2 * 4096 - 200)  # Rows lie at the end of a page.
                file.write(b"\xff" * 200)
            refused("... is damaged: ...; restore the run directory from a copy (docs/formats.md, Repair)")

    def test_steering(self):
        with Cluster().serving(RUN) as cluster:
            cluster.start_worker("a", PACE)
            at = f"--coordinator={cluster.address}"
            wait_until(lambda: json.loads(run_tool(CTL, "status", "--json", at)[1])["run_step"] > 1, "a heartbeat")
            self.refused(CTL, "drain", "c", at, row="no worker ... is a member; there are: ...", status=1)
            self.refused(CTL, "stop", "--at_step=1", at, row="the run has done ... steps, it cannot stop at ...", status=1)
            self.refused(CTL, "stop", "--at_step=100", "--at_tokens=100", at,
                         row="stop takes --at_step=N or --at_tokens=N")
            model = cluster.folder / "model"
            self.assertEqual(run_tool(CTL, "export", f"--out={model}", at)[0], 0)
            (cluster.folder / ".model.replacing").mkdir()
            self.refused(CTL, "export", f"--out={model}", "--replace", at,
                         row="... is there: somebody writes ... just now, or was killed at it", status=1)
            self.refused(CTL, "completion", "fish", row='completion is for bash or zsh, not "..."')


if __name__ == "__main__":
    unittest.main()
