"""causeway fleet: a run's sites on machines of any cloud, by one file, over SkyPilot.

  causeway fleet plan FILE      what `up` would do, and what SkyPilot would take
  causeway fleet up FILE        starts what is not there, replaces what goes, and at the budget fetches
                                the model and ends all; Ctrl-C leaves the machines running, and `up`
                                goes on from there
  causeway fleet status FILE    machines and sites
  causeway fleet down FILE      ends the machines of this fleet, at once

Of one user on one machine only one `up` or `down` of a fleet runs; others are not kept out.
docs/deploy.md has a FILE. Exit status: 0; 1 if something failed; 2 for a FILE or flag that cannot be
used; 130 after Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

from causeway.demo import units
from causeway.fleet._run import Run, RunError, find_programs

_NO_SKYPILOT = "SkyPilot is missing ({}): pip install 'skypilot[aws,gcp]', or what your clouds are"
try:  # It brings the reader of YAML.
    from causeway.fleet._file import COORDINATOR, Fleet, FleetFileError, read_fleet
    from causeway.fleet._machines import Machine, Machines, first_line
    from causeway.fleet._up import LOOK_EVERY_S, PATIENCE_S, Up, take_down
except ImportError as missing:
    sys.exit(f"causeway fleet: {_NO_SKYPILOT.format(missing)}")


def parse_arguments(arguments: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="causeway fleet", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("plan", "up", "status", "down"))
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="status: for programs")
    parser.add_argument("--interval", type=float, default=LOOK_EVERY_S, metavar="SECONDS",
                        help="up: between two looks at all (default %(default)g)")
    parser.add_argument("--patience", type=float, default=PATIENCE_S, metavar="SECONDS",
                        help="up: ends when the coordinator has not answered for so long (default %(default)g)")
    parser.add_argument("--programs", type=Path,
                        help="folder of causewayctl (default: that of this package)")
    options = parser.parse_args(arguments)
    if not options.interval > 0:
        parser.error(f"--interval must be more than 0; it is {options.interval:g}")
    return options


@contextlib.contextmanager
def lock(fleet: Fleet) -> Iterator[None]:
    """Nobody else of this user starts or ends machines of this fleet meanwhile, by whichever file."""
    with fleet.state("lock").open("ab") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(f"an `up` or `down` of fleet {fleet.name} is under way: end it first (Ctrl-C)") from error
        yield


def plan(fleet: Fleet, machines: Machines, say: Callable[[str], None]) -> bool:
    there = machines.look(refresh=False)
    tasks = machines.tasks()
    seen = set()
    for name, task in tasks.items():
        found = there.get(name)
        say(f"{name}: {'to be started' if found is None else 'there, ' + (found.job or found.state)} "
            f"({fleet.cluster(name)})")
        kind = str(task.resources)
        if found is None and kind not in seen:
            seen.add(kind)
            try:
                machines.dry_run(name, task)
            except Exception as error:  # Without access to a cloud the task itself says what is wanted.
                say(f"  SkyPilot does not plan it here: {first_line(error)}\n  {kind}")
    for name in sorted(set(there) - set(tasks)):
        say(f"{name}: there, and not in the file: `down` ends it")
    say(f"The run ends at {units.count(fleet.budget_tokens)} tokens of all sites; then its model comes to "
        f"{fleet.model}, and all machines end.")
    return True


def status(fleet: Fleet, run: Run, machines: Machines, as_json: bool, say: Callable[[str], None]) -> bool:
    there = machines.look()
    trouble = ""
    told: Dict[str, Any] = {"workers": [], "tokens": None, "finished": None}
    try:
        told = run.status()
    except RunError as error:
        trouble = first_line(error)
    workers = {worker["worker_id"]: worker for worker in told["workers"]}
    names = [site.name for site in fleet.sites]
    if fleet.own is not None:
        names.insert(0, COORDINATOR)
    rows = []
    for name in [*names, *sorted(set(there) - set(names))]:
        machine, worker = there.get(name, Machine("none")), workers.get(name, {})
        rows.append({"name": name, "cluster": fleet.cluster(name), "machine": machine.state,
                     "job": machine.job, "where": machine.where, "state": worker.get("state", ""),
                     "step": worker.get("step"), "tokens": worker.get("tokens"),
                     "tokens_per_second": worker.get("tokens_per_second")})
    if as_json:
        say(json.dumps({"fleet": fleet.name, "budget_tokens": fleet.budget_tokens, "tokens": told["tokens"],
                        "finished": told["finished"], "trouble": trouble, "places": rows}, indent=2))
        return not trouble

    def number(value: float | None) -> str:
        return "-" if value is None else units.count(value)

    table = [["place", "machine", "where", "site", "tokens", "tokens/s"]]
    table += [[row["name"], f"{row['machine']} {row['job']}".strip(), row["where"] or "-",
               row["state"].lower() or "-", number(row["tokens"]), number(row["tokens_per_second"])]
              for row in rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    for row in table:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    say(f"the coordinator: {trouble}" if trouble else
        f"{units.count(told['tokens'])} of {units.count(fleet.budget_tokens)} tokens"
        f"{', the run has ended' if told['finished'] else ''}")
    return not trouble


def check_model_folder(fleet: Fleet) -> None:
    if fleet.model.exists() and (not fleet.model.is_dir() or any(fleet.model.iterdir())):
        raise RunError(f"model: {fleet.model} has something in it: remove it, or name another folder")


def work(options: argparse.Namespace, sky: Any, clock: Any, say: Callable[[str], None]) -> bool:
    """`sky` is SkyPilot's module, `clock` the module time, or what stands in for them."""
    fleet = read_fleet(options.file)
    run = Run(fleet, find_programs(options.programs))
    machines = Machines(sky, fleet)
    if options.command == "plan":
        return plan(fleet, machines, say)
    if options.command == "status":
        return status(fleet, run, machines, options.json, say)
    with lock(fleet):
        if options.command == "down":
            return take_down(fleet, run, machines, clock, say)
        fetched = fleet.state("fetched")
        if fetched.exists() and fetched.read_text() == str(fleet.model) and fleet.model.exists():
            say(f"{fleet.model} has the model of this fleet (remove it for another): ends what is left")
            return take_down(fleet, run, machines, clock, say)
        check_model_folder(fleet)
        fetched.unlink(missing_ok=True)
        return Up(fleet, run, machines, clock, say, options.interval, options.patience).to_the_end()


def main(arguments: List[str]) -> int:
    options = parse_arguments(arguments)
    shown = sys.stdout

    def say(line: str) -> None:
        print(line, file=shown, flush=True)

    def stop(_signal: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        # SkyPilot's own words are for people.
        with contextlib.redirect_stdout(sys.stderr):
            try:
                import sky
            except ImportError as error:
                raise RunError(_NO_SKYPILOT.format(error)) from error
            return 0 if work(options, sky, time, say) else 1
    except FleetFileError as error:
        print(f"causeway fleet: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            print("\ncauseway fleet: ended; " + (
                f"machines of the fleet go on, and cost: `causeway fleet up {options.file}` goes on, "
                "`down` ends them" if options.command == "up" else "what was begun may go on"),
                file=sys.stderr)
        return 130
    except Exception as error:
        print(f"causeway fleet: {error if isinstance(error, RunError) else first_line(error)}",
              file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
