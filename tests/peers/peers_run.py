"""Causeway beside what a user would pick instead: see tests/peers/run --help."""

import argparse
import dataclasses
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "wan"), str(ROOT / "tests" / "experiments")]

import network  # noqa: E402
import peers_report  # noqa: E402
import prose  # noqa: E402
from cell import FAULTS, Cell, Model  # noqa: E402
from network import LinkSettings  # noqa: E402
from processes import end_with  # noqa: E402
from ways import ROWS  # noqa: E402

MODELS = {"1m": Model("1m", 1165312, batch=4, steps=256, step_s=0.1, limit_s=60),
          "10m": Model("10m", 10000704, batch=2, steps=96, step_s=0.3, limit_s=60)}
LINKS = ("1000mbit,20ms", "100mbit,100ms", "20mbit,200ms,0.1%")
FAULT_LINK = LINKS[1]
FAULT_LIMIT_S = 90
TEXT_BYTES = 12_000_000
_GUESS_S = 52  # Of a cell, before the first is over.


def link_of(text):
    """LinkSettings of RATEmbit,RTTms[,LOSS%], between two sites."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)mbit,(\d+(?:\.\d+)?)ms(?:,(\d+(?:\.\d+)?)%)?", text)
    if not found or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"a link is written like 100mbit,100ms or 20mbit,200ms,0.1%, not '{text}'")
    return LinkSettings(rate_mbit=float(found[1]), rtt_ms=float(found[2]), loss_percent=float(found[3] or 0))


def _names(known):
    def parse(text):
        found = []
        for word in text.split(","):
            chosen = [name for name in known if name == word or name.startswith(word + "-")]
            if not chosen:
                raise argparse.ArgumentTypeError(f"there is no '{word}'; there are {', '.join(known)}")
            found += chosen
        return found
    return parse


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        prog="tests/peers/run", description="Trains the same PyTorch model on the same data over the same "
        "emulated links, by Causeway and by its peers, in turn. Without arguments: everything that "
        "docs/reports/peers.md shows; it wants a quiet machine, root and /dev/net/tun. Each training is saved "
        "when it is over, and another call goes on from there.")
    parser.add_argument("--link", action="append", type=lambda text: (link_of(text), text)[1],
                        help="RATEmbit,RTTms[,LOSS%%] between two sites; may be repeated")
    parser.add_argument("--peers", type=_names(ROWS), default=list(ROWS),
                        help=f"some of {', '.join(ROWS)}; ddp stands for both of its")
    parser.add_argument("--model", type=_names(MODELS), help="1m, 10m or both")
    parser.add_argument("--faults", type=_names(FAULTS), help=f"these alone: some of {', '.join(FAULTS)}")
    parser.add_argument("--quick", action="store_true", help="64 short steps: whether it runs, no figures")
    parser.add_argument("--out", type=Path, default=ROOT / "build/peers-report/peers.json")
    parser.add_argument("--text", type=Path, help="a text to train on; default: prose of this machine's packages")
    parser.add_argument("--report", action="store_true",
                        help="measures nothing: writes docs/reports/peers.md and its figure from --out")
    parser.add_argument("--json", action="store_true", help="prints the result as JSON, not as tables")
    options = parser.parse_args(arguments)
    options.bin = Path(os.environ.get("CAUSEWAY_BIN", ROOT / "build/release/bin")).resolve()
    options.python = os.environ.get("CAUSEWAY_PEERS_PYTHON", sys.executable)
    return options


def planned(options):
    """(key, row's name, Model, link, fault or None) of everything asked for."""
    links = options.link or LINKS
    narrowed = options.link or options.model
    found = []
    for link in links if not options.faults else ():
        for model in options.model or (["1m"] if options.link or link != FAULT_LINK else MODELS):
            found += [(name, model, link, None) for name in options.peers
                      if name != "alone" or narrowed or (link, model) == (LINKS[0], "1m")]
    if options.faults or not narrowed:
        link = (options.link or [FAULT_LINK])[0]
        found += [(name, "1m", link, fault) for name in options.peers
                  for fault in options.faults or FAULTS if not why_not(name, fault)]
    cells = []
    for name, model, link, fault in found:
        model = MODELS[model]
        model = dataclasses.replace(
            model, limit_s=FAULT_LIMIT_S if fault else model.limit_s,
            steps=64 if options.quick else model.steps, step_s=model.step_s / (2 if options.quick else 1))
        cells.append(("/".join((name, model.name, link, fault or "")), name, model, link, fault))
    return cells


def why_not(name, fault):
    """Why a row is not put to a fault, or an empty text."""
    row = ROWS[name]
    return row.no_faults or getattr(row.module, "CANNOT", {}).get(fault, "")


def make_text(options, folder):
    """The text, and its hash."""
    path = options.text or folder / "prose.txt"
    if not path.exists():
        documents = folder / "prose.jsonl"
        prose.write(documents, limit_bytes=TEXT_BYTES)
        with documents.open(encoding="utf-8") as lines:
            path.write_text("\n".join(json.loads(line)["text"] for line in lines), encoding="utf-8")
        documents.unlink()
    return path.resolve(), hashlib.sha256(path.read_bytes()).hexdigest()


def make_starts(options, folder, text_sha256):
    """By model, the file with the values that all sites begin with: made once for a text."""
    starts = {name: folder / f"start-{name}-{text_sha256[:12]}.pt" for name in MODELS}
    for name, path in starts.items():
        if not path.exists():
            progress(f"trains what {name} begins with; a minute or two")
            subprocess.run([options.python, ROOT / "tests/peers/task.py", "start", name, options.text, path], check=True)
    return starts


def environment(options, text_sha256):
    code = ("import importlib.metadata as m, json, platform; print(json.dumps({'python': platform.python_version(), "
            "**{n: m.version(n) for n in %r}}))" % sorted({one for row in ROWS.values() for one in row.packages}))
    versions = subprocess.run([options.python, "-c", code], capture_output=True, text=True, check=True).stdout
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                            check=False).stdout.strip()
    return {"versions": json.loads(versions), "commit": commit, "cores": os.cpu_count(),
            "kernel": platform.release().partition("-")[0], "text_sha256": text_sha256, "quick": options.quick}


def save(path, report):
    new = path.with_suffix(".new")
    new.write_text(json.dumps(report))
    new.rename(path)


def measure(options, report, progress):
    """What is not in the report yet."""
    cells = planned(options)
    left = [cell for cell in cells if cell[0] not in report["cells"]]
    progress(f"{len(cells)} trainings, {len(left)} of them to do, some {len(left) * _GUESS_S / 60:.0f} minutes")
    began = time.monotonic()
    for number, (key, name, model, link, fault) in enumerate(left):
        spent = time.monotonic() - began
        rest = (spent / number if number else _GUESS_S) * (len(left) - number)
        progress(f"{number + 1}/{len(left)}  {key}  ({rest / 60:.0f} minutes to go)")
        begun = time.monotonic()
        result = Cell(options, ROWS[name], model, link_of(link), fault).run()
        logs = result.pop("logs")
        result |= {"link": link, "took_s": round(time.monotonic() - begun, 1)}
        if fault:
            result["became"] = peers_report.judge(result, logs, report["cells"].get("/".join((name, "1m", link, ""))))
        report["cells"][key] = result
        save(options.out, report)
        progress("    " + peers_report.one_line(result))


def progress(line):
    print(line, file=sys.stderr, flush=True)


def main():
    options = parse_arguments()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    report = json.loads(options.out.read_text()) if options.out.exists() else {"cells": {}}
    if options.report:
        if not report["cells"] or report["environment"]["quick"]:
            print(f"tests/peers/run: {options.out} has no measurements for the page, which tests/peers/run without "
                  "--quick makes", file=sys.stderr)
            return 2
        peers_report.write(report, ROOT, why_not)
        return 0
    if reason := network.why_impossible():
        print(f"tests/peers/run: {reason}", file=sys.stderr)
        return network.SKIPPED
    options.text, text_sha256 = make_text(options, options.out.parent)
    here = environment(options, text_sha256)
    before = report.setdefault("environment", here)
    differs = [name for name in ("versions", "cores", "text_sha256", "quick") if before[name] != here[name]]
    if differs:
        print(f"tests/peers/run: {options.out} was measured with other {', '.join(differs)}: name another --out",
              file=sys.stderr)
        return 2
    options.starts = make_starts(options, options.out.parent.resolve(), text_sha256)
    measure(options, report, progress)
    print(json.dumps(report, indent=1) if options.json else
          "\n\n".join((peers_report.figures_table(report), peers_report.faults_table(report, why_not))))
    return 0


if __name__ == "__main__":
    end_with(main, "tests/peers/run: stopped; what was finished is saved")
