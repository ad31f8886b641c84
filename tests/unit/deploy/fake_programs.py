"""Programs that stand in for causeway-coordinator and causeway-worker in tests of quickstart.

`python` beside them stands in for a Python that has PyTorch, and starts a worker, too. They speak no
network: the coordinator serves a folder's address file, the workers write what
fake_run.py would, and each ends, fails or waits as a plan file in the programs' folder says.
"""

import json
import shutil
import signal
import sys
from pathlib import Path

import fake_run

_STUB = """\
#!/usr/bin/python3 -B
import sys
sys.path.insert(0, {here!r})
import fake_programs
fake_programs.main({name!r}, {plan!r})
"""


def install(folder: Path, **plan: str) -> None:
    """Writes the programs. The plan says what a process does once it is started:
    coordinator="...", worker_0="...", tokenize="...", each one of "work" (the default), "fail",
    "refuse" or "wait" (until it is told to end)."""
    folder.mkdir(parents=True)
    for name in ("causeway-coordinator", "causeway-worker", "python"):
        program = folder / name
        here = str(Path(__file__).resolve().parent)
        program.write_text(_STUB.format(here=here, name=name, plan=plan), encoding="utf-8")
        program.chmod(0o755)


def _flags() -> dict[str, str]:
    return dict(argument[2:].split("=", 1) for argument in sys.argv[2:] if "=" in argument)


def _leave(_number, _frame):
    print("asked to end, leaving", flush=True)
    sys.exit(0)


def main(program: str, plan: dict[str, str]) -> None:
    signal.signal(signal.SIGTERM, _leave)
    flags = _flags()
    command = sys.argv[1]
    role = {"serve": "coordinator", "tokenize": "tokenize"}.get(command)
    role = role or flags["id"].replace("-", "_")
    behaviour = plan.get(role, "work")
    if command == "serve":
        if behaviour != "work_without_page":
            Path(flags["http_address_file"]).write_text("127.0.0.1:8\n", encoding="utf-8")
        Path(flags["address_file"]).write_text("127.0.0.1:7\n", encoding="utf-8")
    if behaviour == "fail":
        sys.exit(f"{program}: {role} was told to fail")
    if behaviour == "refuse":
        print(f"{role} cannot use this", flush=True)
        sys.exit(2)
    if behaviour == "wait":
        print("waiting", flush=True)
        while True:
            signal.pause()
    if command == "tokenize":
        Path(flags["out"]).mkdir()
        print(f"tokenized {flags['input']}")
        return
    _take_from_fake_run(Path(flags.get("run_dir") or flags["out"]))


def _take_from_fake_run(target: Path) -> None:
    """Fills one process's folder with its part of a made-up run."""
    made_up = target.parent / f".made-up-{target.name}"
    fake_run.write_fake_run(made_up, steps=60)
    shutil.copytree(made_up / target.name, target, dirs_exist_ok=True)
    shutil.rmtree(made_up)
    print(json.dumps({"finished": target.name}))
