"""Sites of several processes: the same bytes for every way to shard, and how they fail together."""

import logging
import multiprocessing
import os
import pathlib
import sys
import tempfile
import unittest
from multiprocessing import forkserver
from unittest import mock

import torch.distributed as dist
from torch import nn

import causeway.torch
import emulated
import torch_trainer
from causeway.torch import _group
from models import small_model, values_of
from runs import SIGKILL, STREAMING, Run, ended, wait_until


PATIENCE_S = 300
# Every process owns some of its several codec chunks.
WIDTH = 1700
WIDE = f"--width={WIDTH}"
ON_HOST = "values cross in the host's memory"
ALONE = {}  # By type, what a site of one process sends and publishes.


def train(log, arguments, variables):
    os.environ.update(variables)
    with open(log, "wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    torch_trainer.run(arguments)


def make_site(folder, rank):
    """A site of two processes, of which the second waits for a file."""
    logging.basicConfig(filename=folder / f"{rank}.log")
    _group._FIRST_LINE_S = 0.1
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(str(folder / "store"), 2))
    for turn in range(2):
        if rank == 1:
            wait_until((folder / f"go{turn}").exists, "the other one has waited")
        causeway.torch.join("h:1", nn.Linear(2, 2), id="s").drain()
    os._exit(0)  # Sites that never joined say so.


# Forks processes that need not import torch again. Not this process, in which other tests' sites were:
# a child of one whose gRPC has not ended yet has no threads of gRPC, and waits for ever.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch_trainer"])


class Rank:
    """A process of a site."""

    def __init__(self, log, arguments, variables):
        self._log = log
        self._process = FORKS.Process(target=train, args=(log, arguments, variables))
        self._process.start()

    def wait(self):
        """Its status, negative after a signal."""
        self._process.join(PATIENCE_S)
        if self._process.exitcode is None:
            self._process.kill()
        return self._process.exitcode

    def kill(self):
        self._process.kill()
        self._process.join()

    def log(self):
        return self._log.read_text() if self._log.exists() else ""


class ShardedTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
            forkserver.ensure_running()  # Python 3.11's looks for what it preloads nowhere else.

    def start(self, run, size, *flags):
        # Not a port that was free a moment ago: whoever takes it meanwhile keeps the others waiting.
        return [Rank(run.folder / f"rank{rank}.log", [run.address, *flags],
                     {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size),
                      "STORE": str(run.folder / "store")})
                for rank in range(size)]

    def trained(self, dtype, size, *flags):
        """What it sent, and the values that it published."""
        with Run().serving(STREAMING) as run:  # The site brings the model, from all its processes.
            processes = self.start(run, size, WIDE, f"--dtype={dtype}", *flags)
            ended(*processes)
            summary = run.finish()
            self.assertEqual(summary["tokens"], 20 * 12)
            logs = [process.log() for process in processes[:-1 if "--outsider" in flags else None]]
            published = {line for log in logs for line in log.split("\n") if line.startswith("published")}
            self.assertEqual(len(published), 1)
            on_host = "--shard=columns" in flags or "--devices=2" in flags
            for log in logs:
                self.assertEqual(ON_HOST in log, emulated.chosen and on_host, log)
                if emulated.chosen and not on_host:
                    self.assertIn("waits 0\n", log)
            return *run.sent(), published

    def alone(self, dtype):
        """The same of a site of one process."""
        if dtype not in ALONE:
            ALONE[dtype] = self.trained(dtype, 1)
        self.assertGreater(len(ALONE[dtype][0]), 10)
        return ALONE[dtype]

    def test_any_number_of_processes_sends_the_same_bytes(self):
        ways = {"float32": ((4, "fsdp"), (4, "hsdp"), (2, "columns"), (3, "ddp"), (2, "turned"), (3, "ddp", "--outsider"),
                            (2, "ddp", "--devices=2")),
                "bfloat16": ((3, "fsdp"), (2, "columns"), (2, "ddp"))}
        for dtype in ways:
            for size, shard, *more in ways[dtype]:
                with self.subTest(dtype=dtype, size=size, shard=shard, more=more):
                    # A forward pass takes no layers by columns.
                    evaluate = ["--evaluate"] if shard != "columns" else []
                    self.assertEqual(self.trained(dtype, size, f"--shard={shard}", *evaluate, *more), self.alone(dtype))

    def test_killed_and_resumed_it_sends_the_same_bytes(self):
        for dtype, size, *shard in (("float32", 1), ("float32", 2, "--shard=fsdp"),
                                    ("bfloat16", 1), ("bfloat16", 3, "--shard=ddp"), ("bfloat16", 1, "--devices=3")):
            with self.subTest(dtype=dtype, size=size), Run().serving(STREAMING) as run:
                flags = [WIDE, f"--dtype={dtype}", *shard, "--every=5", f"--checkpoint={run.folder / 'saved'}"]
                processes = self.start(run, size, *flags, "--hold=12")
                wait_until(lambda: all("step 12\n" in one.log() for one in processes), "all are there")
                for one in processes:
                    one.kill()
                (run.folder / "store").unlink(missing_ok=True)
                processes = self.start(run, size, *flags)
                ended(*processes)
                self.assertIn("restored True", processes[-1].log())
                run.finish()
                self.assertEqual(run.sent(), self.alone(dtype)[:2])

    def test_the_first_process_has_a_state_when_the_others_have_come_to_their_end(self):
        # Programs of their own, which end as programs do: gloo lets no thread go then.
        with Run().serving(STREAMING, initial=values_of(small_model(width=WIDTH))) as run:
            processes = [run.start_program(f"rank{rank}", "torch_trainer.py", run.address, WIDE, "--shard=ddp",
                                           "--last_state", RANK=str(rank), WORLD_SIZE="2",
                                           STORE=str(run.folder / "store")) for rank in range(2)]
            for one in processes:
                self.assertEqual(one.wait(), 0, one.log())
            self.assertRegex(processes[0].log(), "state [0-9]{6}")
            run.finish()

    def test_who_waits_for_other_processes_says_for_which(self):
        with tempfile.TemporaryDirectory(prefix="causeway_ranks_") as name:
            folder = pathlib.Path(name)
            processes = [FORKS.Process(target=make_site, args=(folder, rank)) for rank in range(2)]
            for process in processes:
                process.start()
            line = "s for rank 1 of its 2 processes: each of them calls join()"
            log = folder / "0.log"
            for turn in range(2):
                before = log.read_text().count(line) if turn else 0
                wait_until(lambda: log.exists() and log.read_text().count(line) > before + 1, "it is said twice")
                (folder / f"go{turn}").touch()
            for process in processes:
                process.join(PATIENCE_S)
                self.assertEqual(process.exitcode, 0)
            self.assertNotIn(line, (folder / "1.log").read_text())

    def test_what_one_process_cannot_do_ends_the_site(self):
        has_ended, stopped = (f"another process of this site {what}" for what in ("has ended", "cannot go on"))
        for how, status, first, last in (
                ("--fail=7", 1, has_ended, "ValueError: this process has no more data"),
                ("--die=7", -SIGKILL, has_ended, "step 7"),
                # Published values are shown in none.
                ("--swap=6", 1, stopped, "norm.weight is another tensor than when this site joined"),
                # It hands nothing over, and yet keeps the first one from sending.
                ("--freeze=6", 1, stopped, "embed.weight does not require gradients any more")):
            with self.subTest(how), Run().serving(
                    "sync { steps_between_syncs: 5 } membership { start_workers: 1 }" if "freeze" in how else STREAMING,
                    initial=values_of(small_model())) as run:
                processes = self.start(run, 2, "--shard=ddp", how)
                self.assertEqual([process.wait() for process in processes], [1, status])
                self.assertIn(f"Aborted: ABORTED: {first}", processes[0].log())
                self.assertIn(last, processes[1].log())
                self.assertIn("another process of this site", str(run.left("s")))
                if "freeze" in how:
                    self.assertEqual([number for _, number, _ in run.pushed()], [1])

    def test_ctrl_c_ends_a_wait_for_a_process_that_is_stopped_and_names_it(self):
        for how, line in (("--stop", "KeyboardInterrupt ended a wait of [0-9]+ s for rank 1 of this site: is that"),
                          ("--stop_within", "rank 1 of this site has said nothing for 2s, and this wait for it")):
            with self.subTest(how), Run().serving(STREAMING, initial=values_of(small_model(width=WIDTH))) as run:
                processes = self.start(run, 2, WIDE, "--shard=ddp", f"{how}=7")
                self.addCleanup(processes[1].kill)  # It never ends by itself.
                self.assertEqual(processes[0].wait(), 1, processes[0].log())
                processes[1].kill()
                self.assertRegex(processes[0].log(), line)
                self.assertIn("KeyboardInterrupt", processes[0].log().splitlines()[-1])
                run.wait_for_event("worker_left", worker="s")
