"""What all experiments share: a list of training runs made with real processes, one after the
other, each as deploy/quickstart makes it but for the settings that an experiment changes.

    runs = [TrainingRun("int4-s1", seed=1, labels={"codec": "int4"},
                        settings={"sync.codec_up": "INT4"})]
    results, failures = Series(programs, out, steps=240).run_all(runs)

A finished run leaves OUT/NAME/result.json and is not repeated while its configuration stays the
same, so that a series that was interrupted goes on where it stopped. A run that did not come to
its end, or whose workers ever held different parameters, has no result.
"""

import contextlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "worker" / "python"))

from causeway.demo import config, report, units  # noqa: E402  (after the path is known)
from causeway.demo.processes import ProcessDied, ProcessGroup  # noqa: E402
import causeway.demo.__main__ as quickstart  # noqa: E402

import prose  # noqa: E402

# 97.5 % quantiles of Student's t by degrees of freedom. Between two of them the lower one counts.
_T_QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306,
                9: 2.262, 10: 2.228, 12: 2.179, 15: 2.131, 20: 2.086, 30: 2.042, 60: 2.0}


class Incomplete(Exception):
    """A run ended, but its figures cannot be used."""


@dataclass(frozen=True)
class TrainingRun:
    """One training. settings: fields of RunConfig by dotted path, over those of quickstart."""

    name: str
    seed: int
    labels: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    mode: str = "streaming"  # Whose settings of quickstart they change.
    workers: int = 2
    tokens: int | None = None  # Tokens of all workers together, which the run must come to.

    def config_text(self, steps: int) -> str:
        lines = [config.run_config_text(self.mode, steps, self.workers, self.seed),
                 "# What the experiment changes; the later value counts.",
                 'run_name: "experiment"']
        for path, value in self.settings.items():
            message, _, name = path.rpartition(".")
            lines += [f"{message} {{", f"  {name}: {value}", "}"]
        return "\n".join(lines) + "\n"


def result_of(folder: Path, steps: int, tokens: int | None = None) -> dict:
    """The figures of a finished run, or Incomplete with the reason. tokens: what all workers together
    must have trained, too."""
    run = report.load_run(folder)
    numbers = report.compute(run)
    problems = []
    done = [worker.summary.get("steps") for worker in run.workers]
    if any(count != steps for count in done):
        problems.append(f"the workers did {done} steps instead of {steps}")
    if tokens is not None and numbers["tokens"] != tokens:
        problems.append(f"the workers trained {numbers['tokens']} tokens instead of {tokens}")
    if numbers["hash_mismatches"] != 0 or not numbers["hash_checks"]:
        problems.append(f"{numbers['hash_mismatches']} of {numbers['hash_checks']} checks of the "
                        "published parameters' hashes failed")
    if not isinstance(numbers["eval_loss"], float) or not math.isfinite(numbers["eval_loss"]):
        problems.append(f"the held-out loss is {numbers['eval_loss']}")
    partial = [row for row in run.rounds if len(row["contributors"]) != len(run.workers)]
    if partial:
        problems.append(f"{len(partial)} rounds closed without all workers")
    if problems:
        raise Incomplete("; ".join(problems))
    counts = [0] * numbers["fragments"]
    for row in run.rounds:
        counts[row["fragment"]] += 1
    return {
        "eval_loss": numbers["eval_loss"],
        "initial_loss": numbers["initial_loss"],
        "steps": steps,
        "parameters": numbers["params"],
        "tokens": numbers["tokens"],
        "syncs_per_fragment": min(counts),
        "rounds": len(run.rounds),
        "bytes_per_worker": {
            way: statistics.fmean(numbers[f"bytes_{way}"].values()) for way in ("up", "down")},
        "state_bytes_per_worker": _mean_known(numbers["state_bytes_down"].values()),
        "compute_utilization": numbers["compute_utilization"]["mean"],
        "bytes_per_param_per_sync": numbers["bytes_per_param_per_sync"],
        "wall_seconds": numbers["wall_seconds"],
        "eval_curve": numbers["eval_curve"],
    }


def _mean_known(values) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


class Series:
    """Runs trainings in OUT, with progress on standard error."""

    def __init__(self, programs: Path, out: Path, steps: int,
                 corpus: Path | None = None, prose: bool = False, threads: int | None = None):
        """corpus: the text, a file or a folder; quickstart's if left out, or prose.py's. threads: of
        each worker; the machine's cores, shared, if left out."""
        self._programs = programs
        self._corpus = corpus
        self._prose = prose
        self._flags = () if threads is None else (f"--threads={threads}",)
        self._out = out.resolve()
        self._steps = steps

    def result(self, run: TrainingRun) -> dict | None:
        """Of a run that finished with the same configuration, now or earlier."""
        folder = self._out / run.name
        try:
            if _settings((folder / "run.textproto").read_text(encoding="utf-8")) != _settings(run.config_text(self._steps)):
                return None
            return json.loads((folder / "result.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def run_all(self, runs: list[TrainingRun]) -> tuple[list[dict], list[str]]:
        """Results in the order of the runs, and a line for each run that has none."""
        failures = []
        spent = []
        missing = [run for run in runs if self.result(run) is None]
        _say(f"{len(runs)} runs, {len(runs) - len(missing)} of them finished earlier; "
             f"logs in {self._out}")
        if missing:
            self._prepare_text()
        for index, run in enumerate(missing):
            begin = time.monotonic()
            left = "" if not spent else (
                f", {units.duration(statistics.mean(spent) * (len(missing) - index))} left")
            _say(f"[{len(runs) - len(missing) + index + 1}/{len(runs)}] {run.name}{left}")
            try:
                result = self._train(run)
            except (ProcessDied, Incomplete) as error:
                failures.append(f"{run.name}: {error}")
                _say(f"     FAILED: {error}")
            else:
                _say(f"     held-out loss {result['eval_loss']:.4f} after "
                     f"{units.duration(time.monotonic() - begin)}")
            spent.append(time.monotonic() - begin)
        return self.results(runs), failures

    def results(self, runs: list[TrainingRun]) -> list[dict]:
        """Of those runs that have finished."""
        return [result for run in runs if (result := self.result(run))]

    def _arguments(self, workers: int = 1) -> Namespace:
        return Namespace(programs=self._programs, corpus=self._corpus, steps=self._steps,
                         workers=workers, sample_tokens=0, torch_python=None)

    def _prepare_text(self) -> None:
        """Shards, the same for all runs: in OUT/text/data, unless they are there."""
        folder = self._out / "text"
        if (folder / "complete").exists():
            return
        lock = quickstart.claim_folder(folder)
        if self._prose and not self._corpus:
            text = folder / "prose.jsonl"
            contents = prose.write(text)
            (folder / "prose.json").write_text(json.dumps(contents) + "\n", encoding="utf-8")
            _say(f"prose of this machine's packages: {contents}")
            _tokenize(text, folder)
        else:
            with contextlib.redirect_stdout(sys.stderr):
                quickstart.prepare_data(self._arguments(), folder)
        (folder / "complete").touch()
        os.close(lock)

    def _train(self, run: TrainingRun) -> dict:
        folder = self._out / run.name
        (folder / "result.json").unlink(missing_ok=True)
        lock = quickstart.claim_folder(folder)
        (folder / "data").symlink_to(self._out / "text" / "data")
        (folder / "run.textproto").write_text(run.config_text(self._steps), encoding="utf-8")
        group = ProcessGroup()
        begin = time.monotonic()
        try:
            with (folder / "progress.log").open("w", encoding="utf-8") as log:
                with contextlib.redirect_stdout(log):
                    quickstart.train(self._arguments(run.workers), folder, group, (self._flags,) * run.workers)
        finally:
            group.stop_all()
        result = {"name": run.name, **run.labels, "seed": run.seed,
                  **result_of(folder, self._steps, run.tokens),
                  "elapsed_seconds": round(time.monotonic() - begin, 1)}
        for path in [folder / "coordinator" / "checkpoint.bin",
                     *(folder / f"worker-{i}" / "checkpoint" for i in range(run.workers))]:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        partial = folder / "result.json.part"
        partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        partial.rename(folder / "result.json")
        os.close(lock)
        return result


def _tokenize(text: Path, folder: Path) -> None:
    """Token files of JSON lines, in FOLDER/data, by the Python package, which alone reads documents."""
    done = subprocess.run(
        [sys.executable, "-B", "-m", "causeway.tokenize", f"--input={text}", f"--out={folder / 'data'}"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT / "worker" / "python")})
    if done.returncode != 0:
        raise quickstart.BadSetting(f"the text '{text}' could not be made into token files:\n{done.stderr}")


def _settings(text: str) -> dict[str, str]:
    """What a configuration's text means: the last value of each field, without those that are off."""
    return {path: value for path, value in config.read_fields(text).items() if value != "false"}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def deviation(values: list[float]) -> float | None:
    """The sample standard deviation; None for a single value."""
    return statistics.stdev(values) if len(values) > 1 else None


def differences(losses: dict[int, float], baseline: dict[int, float]) -> list[float]:
    """Of losses from the baseline's, seed by seed. The same seed means the same initial weights and
    the same data in the same order, so that most of what seeds differ in cancels out."""
    return [losses[seed] - baseline[seed] for seed in sorted(losses.keys() & baseline.keys())]


def signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", "\N{MINUS SIGN}")


def shown_difference(mean: float | None, interval: float | None, clear: bool) -> str:
    """Of a table: with its interval, and in bold where it is clear."""
    if mean is None:
        return "-"
    text = signed(mean) + ("" if interval is None else f" ± {interval:.4f}")
    return f"**{text}**" if clear else text


def intervals(groups: list[list[float]]) -> list[float | None]:
    """Half-widths of the 95 % intervals of the groups' means, where all groups are taken to spread
    alike: a few seeds say little about the spread of one setting, but something about that of
    all. None for a group of a single value."""
    freedom = sum(len(values) - 1 for values in groups if values)
    if freedom == 0:
        return [None] * len(groups)
    squares = sum((value - statistics.fmean(values)) ** 2 for values in groups for value in values)
    quantile = _T_QUANTILES[max(known for known in _T_QUANTILES if known <= freedom)]
    return [quantile * math.sqrt(squares / freedom / len(values)) if len(values) > 1 else None
            for values in groups]
