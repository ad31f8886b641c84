"""What the demo can be asked for, checked before anything is started."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from pathlib import Path
from typing import Callable

from causeway.demo import config

MARKER = ".causeway-quickstart"
PACKAGE = Path(__file__).resolve().parents[2]


class BadSetting(Exception):
    """Something the user asked for cannot be done."""


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        """One line, in which the flag is the subject."""
        for pattern, said in ((r"argument (--\w+): (must|needs)", r"\1 \2"), (r"argument (--\w+): expected one argument",
                                                                             r"\1 needs a value"),
                              (r"unrecognized arguments: (\S+).*", r"unknown option '\1'"), (r"argument (--\w+)", r"\1")):
            message = re.sub(f"^{pattern}", said, message)
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,15}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}, not '{text}'")
        return int(text)
    return read


def _one_of(*names: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"must be {', '.join(names[:-1])} or {names[-1]}, not '{text}'")
        return text
    return read


def _corpus(text: str) -> Path:
    path = Path(text)
    if not os.access(path, os.R_OK):
        raise argparse.ArgumentTypeError(f"'{path}' cannot be read" if path.exists() else f"there is no '{path}'")
    if path.is_file() and not path.stat().st_size:
        raise argparse.ArgumentTypeError(f"'{path}' is empty")
    if path.is_dir() and not any(file.is_file() and file.stat().st_size for file in path.rglob("*")):
        raise argparse.ArgumentTypeError(f"there is no file with text in '{path}'")
    if "," in text:
        raise argparse.ArgumentTypeError(f"a path with a comma cannot be used: '{path}'")
    return path


def check_folder(out: Path) -> None:
    """Raises BadSetting unless `out` can be a quickstart's folder."""
    if out.exists() and not out.is_dir():
        raise BadSetting(f"--out: '{out}' is not a folder")
    if out.is_dir() and not (out / MARKER).exists() and any(out.iterdir()):
        raise BadSetting(f"--out: '{out}' holds something that is not a quickstart's result; name another folder")
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise BadSetting(f"--out: '{out}' cannot be written, because of '{there}'")


def _find_torch() -> str:
    """A Python that has PyTorch, as a clone finds it."""
    program = PACKAGE.parents[1] / "deploy" / "find_torch"
    if not program.exists():
        raise BadSetting("--trainer=pytorch is for a clone: its loop is in worker/python/examples")
    found = subprocess.run([program], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise BadSetting(found.stderr.strip())
    return found.stdout.strip()


def parse(arguments: list[str]) -> argparse.Namespace:
    """BadSetting, or the end of the program with status 2 and a line, where something cannot be used."""
    parser = _Parser(prog="causeway demo", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
                     description="""\
Trains a one-million-parameter byte-level language model on this machine's CPU with a coordinator and several
workers, and writes a report of what synchronization cost.

Results: DIR/report.html, DIR/report.json, DIR/sample.txt, DIR/run.textproto, and the logs and metrics of every
process in DIR/coordinator and DIR/worker-N. Exit status: 0; 1 if a process failed; 2 if a setting cannot be used;
130 after Ctrl-C, SIGTERM or SIGHUP (unless nohup started it), with everything stopped.""")
    add = parser.add_argument
    add("--mode", type=_one_of(*config.MODES), default="streaming", help="streaming (default), diloco or data-parallel")
    add("--trainer", type=_one_of("causeway", "pytorch"), default="causeway",
        help="causeway (default, causeway-worker), or pytorch: from a clone, a loop in Python with the package causeway; "
             "streaming and diloco only")
    add("--steps", type=_whole(1, 10**9), default=config.DEFAULT_STEPS,
        help="inner steps of every worker (by deploy/quickstart default 500; else %(default)s)")
    add("--workers", type=_whole(1, 64), default=2, help="worker processes (default %(default)s)")
    add("--seed", type=_whole(0, 10**15 - 1), default=1, help="initial weights and order of the data (default %(default)s)")
    add("--corpus", type=_corpus, help="a text file or a folder of them (default: the headers that a build of Causeway "
                                       "needs or, without them, Python's library)")
    add("--out", type=Path, default=Path("out"), metavar="DIR",
        help="results (default %(default)s); a former result there is replaced")
    add("--sample_tokens", type=int, default=400, help="length of the text that the model writes at the end")
    add("--programs", type=Path, default=PACKAGE / "causeway" / "bin",
        help="folder of the programs (default: those of this package)")
    add("--check", action="store_true", help="says what cannot be used, and starts nothing")
    options = parser.parse_args(arguments)
    least = int(config.read_fields(config.run_config_text(options.mode, 1, 1, 1))["sync.steps_between_syncs"])
    if options.steps < least:
        parser.error(f"--steps must be at least {least} with --mode {options.mode}, which synchronizes every {least} "
                     f"steps; it is {options.steps}")
    if options.trainer == "pytorch" and options.mode == "data-parallel":
        parser.error("--trainer=pytorch sends deltas, no gradients: choose --mode streaming or diloco")
    if options.corpus is None and "," in str(options.out.absolute()):  # Where the default text goes.
        parser.error(f"--out: a path with a comma cannot be used: '{options.out.absolute()}'")
    check_folder(options.out)
    options.torch_python = _find_torch() if options.trainer == "pytorch" else None
    if not options.check and not (options.programs / "causeway-worker").exists():
        parser.error(f"'{options.programs}' has no causeway-worker: install the wheel of deploy/build_wheel, or name "
                     "a build's bin with --programs")
    return options
