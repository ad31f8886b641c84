#!/usr/bin/python3
"""The experiments on quality: what each choice of the method costs at equal tokens.

    tests/experiments/study.py all [--scale small] [--seeds 1,2,3] [--figures docs/figures/study]
    tests/experiments/study.py overlap workers --inner muon --json

Trains with real processes, a coordinator and its workers, one run after the other; experiments share
runs, and none is repeated that has finished with the same configuration. Experiments on headlines take
all seeds, the others the first. --figures writes NAME.json of every experiment, and
summary.json. Needs the release build of causeway-coordinator and causeway-worker.
Exit status: 0; 1 if a run failed, which then has no figures; 2 for bad settings.
"""

import argparse
import json
import re
import signal
import sys
from pathlib import Path

import study_report
import training_runs
import variants


def _names(known, what: str):
    def parse(text: str) -> list[str]:
        names = list(dict.fromkeys(text.split(",")))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(
                    f"there is no {what} '{name}'; known: {', '.join(known)}")
        return names
    return parse


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    root = training_runs.ROOT
    known = ["all", *variants.EXPERIMENTS]
    parser = argparse.ArgumentParser(
        prog="study.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="+", choices=known, metavar="EXPERIMENT",
                        help=", ".join(known))
    parser.add_argument("--programs", type=Path, default=root / "build" / "release" / "bin",
                        help="folder of the two programs (default: the release build)")
    parser.add_argument("--scale", choices=list(variants.SCALES), default="small")
    parser.add_argument("--corpus", type=Path,
                        help="a text, a file or a folder, in place of the scale's")
    parser.add_argument("--threads", type=int,
                        help="of each worker (default: the machine's cores, shared)")
    parser.add_argument("--out", type=Path, default=root / "out-experiments" / "study",
                        help="where runs and their logs go")
    parser.add_argument("--seeds", default="1,2,3", help="comma-separated")
    parser.add_argument("--inner", type=_names(variants.INNER, "inner optimizer"),
                        default=list(variants.INNER), help="adamw,muon")
    parser.add_argument("--runs", default="", metavar="REGEX",
                        help="only runs in whose name it is found, as small-muon-tau5-seed1")
    parser.add_argument("--finished", action="store_true",
                        help="train nothing: sum up the runs that have finished")
    parser.add_argument("--list", action="store_true", help="print the runs' names and stop")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--figures", type=Path, help="where JSON goes")
    parsed = parser.parse_args(arguments)
    if "all" in parsed.experiments:
        parsed.experiments = [name for name, experiment in variants.EXPERIMENTS.items()
                              if experiment.in_all]
    parsed.experiments = list(dict.fromkeys(parsed.experiments))
    if not re.fullmatch(r"\d{1,15}(,\d{1,15})*", parsed.seeds):
        parser.error(f"--seeds must be whole numbers with commas, not '{parsed.seeds}'")
    parsed.seeds = list(dict.fromkeys(int(seed) for seed in parsed.seeds.split(",")))
    parsed.scale = variants.SCALES[parsed.scale]
    try:
        re.compile(parsed.runs)
    except re.error as error:
        parser.error(f"--runs: '{parsed.runs}' is no regular expression: {error}")
    for program in ("causeway-coordinator", "causeway-worker"):
        if not (parsed.list or parsed.finished or (parsed.programs / program).exists()):
            parser.error(f"there is no {parsed.programs / program}: build it, or name --programs")
    return parsed


def main(arguments: list[str]) -> int:
    parsed = parse_arguments(arguments)
    planned = variants.plan(parsed.experiments, parsed.inner, parsed.seeds, parsed.scale)
    runs = [run for run in planned if re.search(parsed.runs, run.name)]
    if parsed.list:
        print("\n".join(run.name for run in runs))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # As Ctrl-C.
    series = training_runs.Series(parsed.programs, parsed.out, parsed.scale.steps, corpus=parsed.corpus,
                                  prose=parsed.scale.prose, threads=parsed.threads)
    failures = []
    if not parsed.finished:
        try:
            _, failures = series.run_all(runs)
        except KeyboardInterrupt:
            print("study: stopped; the same command goes on from here", file=sys.stderr)
            return 130
    results = series.results(planned)
    reports = study_report.summarize(results, parsed.experiments)
    summary = study_report.overview(results, parsed.scale, len(planned), failures)
    if parsed.figures:
        study_report.write(parsed.figures, reports, summary)
    if parsed.json:
        print(json.dumps({**summary, "experiments": reports}, indent=1))
    else:
        print("\n\n".join(study_report.table(report) for report in reports))
    for failure in failures:
        print(f"study: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
