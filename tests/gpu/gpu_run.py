"""tests/gpu/run: unpacks, runs the parts in order, writes report.json, report.md and logs.txt."""

import argparse
import dataclasses
import json
import lzma
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path

import report
from environment import environment
from kernel_tests import sanitizer, unit
from parts import FAIL, PASS, SKIP, Context, run_part
from sites import sites
from throughput import bench, torch
from quality import quality
from training import end_to_end, synchronization

ROOT = Path(__file__).resolve().parents[2]
PACK = ROOT / "build/gpu/pack.tar.xz"
REPORT = ROOT / "build/gpu/report"

# In the order of what is worth most if time runs out, with the seconds that a part may take before
# others. What docs/gpu.md runs together fits 8.5 minutes.
PARTS = {
    "environment": (environment, 45),
    "unit": (unit, 150),
    "bench": (bench, 310),
    "synchronization": (synchronization, 140),
    "sites": (sites, 175),
    "end_to_end": (end_to_end, 140),
    "sanitizer": (sanitizer, 185),
    "torch": (torch, 460),
    "quality": (quality, 500),
}
# Takes all the time that it is given: only by name.
NAMED_ONLY = {"quality"}


def chosen_parts(only):
    """Names in order; the environment is always looked at."""
    for name in only:
        if name not in PARTS:
            raise SystemExit(f"tests/gpu/run: there is no part {name!r}; there are: "
                             f"{', '.join(PARTS)}")
    return [name for name in PARTS
            if name == "environment" or (name in only if only else name not in NAMED_ONLY)]


class Logs:
    """Everything that commands printed, in one file."""

    def __init__(self, path):
        self._file = open(path, "w", encoding="utf-8")  # pylint: disable=consider-using-with
        self._lock = threading.Lock()

    def write(self, part, text):
        with self._lock:
            self._file.write(f"=== {part}\n{text}\n")
            self._file.flush()

    def close(self):
        self._file.close()


def write_results(out, context, minutes):
    """report.json and report.md, each whole at any time."""
    known = {"parts": [dataclasses.asdict(result) for result in context.results.values()],
             "minutes": minutes}
    text = report.markdown(context.results, context.compared)
    for name, content in (("report.json", json.dumps(known, indent=1)), ("report.md", text)):
        (out / f"{name}.new").write_text(content)
        (out / f"{name}.new").replace(out / name)


def read_report(path):
    """Data of the parts of an earlier run's report.json, by name."""
    try:
        parts = json.loads(Path(path).read_text())["parts"]
        return {part["part"]: part["data"] for part in parts}
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"tests/gpu/run: --compare={path} is no report.json of tests/gpu/run: "
                 f"{type(error).__name__}: {error}")


def unpack(path, folder):
    try:
        with tarfile.open(path) as archive:
            archive.extractall(folder)
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError) as error:
        sys.exit(f"tests/gpu/run: {path} is no whole file of tests/gpu/pack: "
                 f"{type(error).__name__}: {error}")


def run(options):
    begin = time.monotonic()
    names = chosen_parts(options.parts)
    compared = read_report(options.compare) if options.compare else {}
    if options.out is None:
        print(f"No --out: report.md, report.json and logs.txt go to {REPORT}, and are lost with "
              "this copy of the repository.", flush=True)
    out = Path(options.out or REPORT).resolve()
    out.mkdir(parents=True, exist_ok=True)
    logs = Logs(out / "logs.txt")
    with tempfile.TemporaryDirectory(prefix="causeway_gpu_") as folder:
        folder = Path(folder)
        (folder / "pack").mkdir()
        (folder / "work").mkdir()
        unpack(options.pack, folder / "pack")

        def tell(text):
            print(f"      {text}", flush=True)
            keep()

        def keep():
            # Keeps the results so far, should this program be ended from outside.
            write_results(out, context, (time.monotonic() - begin) / 60)

        context = Context(ROOT, folder / "pack", folder / "work", begin + 60 * options.minutes,
                          log=logs.write, tell=tell)
        context.compared = compared
        context.study, context.changes = options.study, options.set
        for name in names:
            print(f"....  {name}", flush=True)
            function, limit_s = PARTS[name]
            # Nothing comes after the last that needs time.
            result = run_part(name, function, context, None if name == names[-1] else limit_s)
            keep()
            print(f"{result.status}  {name}  ({result.seconds:.0f} s)  {result.reason}",
                  flush=True)
    logs.close()
    counts = [sum(result.status == status for result in context.results.values())
              for status in (PASS, FAIL, SKIP)]
    print("\n" + report.summary(context.results, context.compared))
    print(f"{counts[0]} passed, {counts[1]} failed, {counts[2]} skipped, "
          f"{(time.monotonic() - begin) / 60:.1f} minutes; kernel by kernel: {out}/report.md")
    if options.json:
        figures = {"passed": counts[0], "failed": counts[1], "skipped": counts[2]}
        for name in options.parts:
            figures.update(context.results[name].data)
        print(json.dumps(figures))
    if counts[1]:
        return 1
    if context.gpu is None and not options.dry_run:
        print(f"tests/gpu/run: nothing was checked on a GPU: {context.no_gpu}")
        return 1
    return 0


def main():
    parser = argparse.ArgumentParser(description="Runs everything that needs a GPU, and reports.")

    def names(text):
        return [name for name in text.split(",") if name]

    def folder(text):
        if not text:
            raise argparse.ArgumentTypeError("it is empty: is the variable that it came from set?")
        return text

    parser.add_argument("--pack", default=str(PACK), metavar="FILE", help="of tests/gpu/pack")
    parser.add_argument("--out", type=folder, metavar="FOLDER",
                        help=f"for report.json, report.md and logs.txt (default {REPORT})")
    parser.add_argument("--compare", metavar="REPORT.json",
                        help="of an earlier run: what the part torch compares with, unless bench "
                             "runs, too")
    parser.add_argument("--parts", type=names, default=[], metavar="A,B",
                        help=f"only these of {', '.join(PARTS)}")
    parser.add_argument("--study", metavar="FILE.json",
                        help="what the part quality trains (default tests/gpu/quality.json)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="a setting of all trainings of the part quality, as "
                             "train.weight_decay=0.05; may be repeated")
    parser.add_argument("--json", action="store_true",
                        help="the last line is an object of counts and of the figures of --parts")
    parser.add_argument("--minutes", type=float, default=8.5,
                        help="no part begins or goes on after so many (default 8.5)")
    parser.add_argument("--dry-run", action="store_true",
                        help="without a GPU: pack, start every part, see each say why it skips")
    options = parser.parse_args()
    if options.dry_run and not Path(options.pack).exists():
        packed = subprocess.run([ROOT / "tests/gpu/pack", "--out", options.pack],
                                stdin=subprocess.DEVNULL, check=False)
        if packed.returncode != 0:
            sys.exit("tests/gpu/run: there is nothing to run without a pack")
    if not Path(options.pack).exists():
        sys.exit(f"tests/gpu/run: there is no {options.pack}: run tests/gpu/pack where the project "
                 "is built, and bring the file along")
    sys.exit(run(options))
