"""causeway demo: trains a small model at sites that are processes of this machine.

Prepares the text, starts one coordinator and the workers, shows how they do, and writes a report.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from causeway.demo import config, corpus, options, progress, report, units
from causeway.demo.options import MARKER, PACKAGE, BadSetting, check_folder
from causeway.demo.processes import ProcessDied, ProcessGroup

_RESULTS = re.compile(
    r"run\.textproto|data|corpus|coordinator|coordinator\.(address|http)|worker-\d+|tokenize\.log"
    r"|report\.json|report\.html|sample\.txt"
)
_PATIENCE_S = 60.0
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """Ctrl-C, SIGTERM or SIGHUP."""


def claim_folder(out: Path) -> int:
    """Makes `out` an empty quickstart folder that is locked against a second one. Returns the
    lock's descriptor. Removes what a former quickstart wrote, and never anything else."""
    check_folder(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = os.open(out / MARKER, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise BadSetting(f"--out: '{out}' cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BadSetting(f"--out: another quickstart is running in '{out}'") from error
    for path in out.iterdir():
        if _RESULTS.fullmatch(path.name):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    return lock


def prepare_data(arguments: argparse.Namespace, out: Path) -> None:
    """Token shards in out/data."""
    text = arguments.corpus
    if text is None:
        (out / "corpus").mkdir()
        text = out / "corpus" / "text.txt"
        files, total = corpus.write_default_corpus(text)
        print(f"     {files} files of this machine, {units.size(total)}", flush=True)
    command = [str(arguments.programs / "causeway-worker"), "tokenize",
               f"--input={text}", f"--out={out / 'data'}"]
    log = out / "tokenize.log"
    with log.open("wb") as output:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output,
                              stderr=subprocess.STDOUT, check=False)
    said = log.read_text(encoding="utf-8", errors="replace").strip()
    if done.returncode != 0:
        raise BadSetting(f"the text '{text}' could not be made into shards:\n{said}")
    for line in said.splitlines()[-3:]:
        print(f"     {line}", flush=True)


def wait_for_address(group: ProcessGroup, file: Path) -> str:
    """The coordinator's address, once it listens."""
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        group.raise_if_died()
        if file.exists() and (address := file.read_text(encoding="utf-8").strip()):
            return address
        if group.processes[0].popen.poll() is not None:
            break
        time.sleep(0.05)
    raise ProcessDied(f"coordinator did not write its address to {file}")


def worker_command(arguments: argparse.Namespace, out: Path, name: str, coordinator: str,
                   threads: int) -> list[str]:
    flags = [f"--coordinator={coordinator}", f"--id={name}", f"--data={out / 'data'}",
             f"--out={out / name}", f"--threads={threads}",
             f"--sample_tokens={arguments.sample_tokens}"]
    if arguments.torch_python is None:
        return [str(arguments.programs / "causeway-worker"), "train", *flags]
    return ["/usr/bin/env", f"PYTHONPATH={PACKAGE}",
            f"CAUSEWAY_SITE_LIBRARY={arguments.programs / 'libcauseway_site.so'}",
            str(arguments.torch_python), "-B", str(PACKAGE / "examples" / "train_from_scratch.py"),
            *flags]


def start_coordinator(arguments: argparse.Namespace, out: Path, group: ProcessGroup) -> str:
    """The first process of the group. Returns its address; that of its page, if a port was free for it, is in
    out/coordinator.http."""
    address_file = out / "coordinator.address"
    group.start(
        "coordinator",
        [str(arguments.programs / "causeway-coordinator"), "serve",
         f"--run_dir={out / 'coordinator'}", f"--config={out / 'run.textproto'}",
         "--listen=127.0.0.1:0", f"--address_file={address_file}",
         f"--http_address_file={out / 'coordinator.http'}", "--exit_when_finished"],
        out / "coordinator" / "log",
    )
    return wait_for_address(group, address_file)


def train(arguments: argparse.Namespace, out: Path, group: ProcessGroup,
          worker_flags: tuple[tuple[str, ...], ...] = ()) -> None:
    """Runs coordinator and workers to their end. worker_flags: more flags of worker 0, 1, ..."""
    address = start_coordinator(arguments, out, group)
    coordinator, http_file = group.processes[0], out / "coordinator.http"
    cores = len(os.sched_getaffinity(0))
    threads = max(1, cores // arguments.workers)
    for index in range(arguments.workers):
        name = f"worker-{index}"
        group.start(
            name,
            [*worker_command(arguments, out, name, address, threads),
             *(worker_flags[index] if index < len(worker_flags) else ())],
            out / name / "log",
        )
    print(f"     coordinator at {address}, {arguments.workers} workers with "
          f"{threads} thread{'s' if threads > 1 else ''} each; logs in {out}/*/log", flush=True)
    if http_file.exists():
        print(f"     watch it at http://{http_file.read_text(encoding='utf-8').strip()}/ "
              "while it trains", flush=True)

    shown = progress.Progress(out, arguments.steps, arguments.workers)
    coordinator_ended_s = None
    while running := [worker for worker in group.processes[1:] if worker.popen.poll() is None]:
        group.raise_if_died()
        if coordinator.popen.poll() is not None:
            # It ends when the last worker has left the run, which then still writes its sample.
            coordinator_ended_s = coordinator_ended_s or time.monotonic()
            if time.monotonic() - coordinator_ended_s > _PATIENCE_S:
                raise ProcessDied(f"{coordinator.describe_end()}\n"
                                  f"{running[0].name} is still running")
        shown.update()
        time.sleep(0.1)
    group.raise_if_died()
    shown.finish()
    try:
        coordinator.popen.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired as error:
        raise ProcessDied("coordinator did not end after the last worker had left") from error
    group.raise_if_died()


def run(arguments: argparse.Namespace) -> None:
    lock = claim_folder(arguments.out)
    out = arguments.out.resolve()
    print("Text", flush=True)
    prepare_data(arguments, out)
    text = config.run_config_text(
        arguments.mode, arguments.steps, arguments.workers, arguments.seed
    )
    (out / "run.textproto").write_text(text, encoding="utf-8")
    print(f"Training ({arguments.mode}, {arguments.steps} steps; settings in "
          f"{out / 'run.textproto'})", flush=True)
    group = ProcessGroup()
    try:
        train(arguments, out, group)
    finally:
        for number in _ENDS:  # A second Ctrl-C leaves nobody behind.
            signal.signal(number, signal.SIG_IGN)
        group.stop_all()
    report.tell(out)
    os.close(lock)


def main(arguments: list[str]) -> int:
    def stop(_signal, _frame):
        raise Stopped

    for number in _ENDS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        asked = options.parse(arguments)
        if not asked.check:
            run(asked)
    except (BadSetting, corpus.CorpusError) as error:
        print(f"causeway demo: {error}", file=sys.stderr)
        return 2
    except ProcessDied as error:
        print(f"\ncauseway demo: {error}", file=sys.stderr)
        return 2 if error.refused else 1
    except Stopped:
        with contextlib.suppress(OSError):  # The terminal may be gone.
            print("\ncauseway demo: stopped; all processes have ended", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
