"""One causeway-worker and one transformers LlamaForCausalLM train one model.

    tests/python/mixed_run [--json] [--corpus FILE_OR_FOLDER] [--steps N] [--out FOLDER]

Both have the same shape and start from the coordinator's values; the text is quickstart's unless
--corpus names one. Afterwards the model is exported, and its held-out loss is computed by transformers
and by `causeway-worker eval`. Exit status 0 if all hashes were equal, both losses fell, and the two
evaluations agree to 0.001; 77 if there is no Python with torch and transformers.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "worker" / "python"))

import causeway.demo.__main__ as quickstart  # noqa: E402
from causeway.demo import config, output, processes  # noqa: E402

TOLERANCE = 1e-3
SEQUENCES = 64  # Held-out windows of the last evaluation.
NAMES = ("causeway", "transformers")


def parse_arguments():
    parser = argparse.ArgumentParser(prog="tests/python/mixed_run", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch_python", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")
    parser.add_argument("--corpus", type=Path, help="a text, or a folder of them")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--out", type=Path, help="keeps the run's files there")
    arguments = parser.parse_args()
    if arguments.steps < 30:
        parser.error(f"--steps must be at least 30, the distance of two syncs; it is {arguments.steps}")
    if arguments.corpus and not arguments.corpus.exists():
        parser.error(f"--corpus: there is no '{arguments.corpus}'")
    arguments.programs = Path(os.environ["CAUSEWAY_BIN"]).resolve()
    return arguments


def site_command(arguments, *words):
    return ["/usr/bin/env", f"PYTHONPATH={ROOT / 'worker' / 'python'}",
            f"CAUSEWAY_SITE_LIBRARY={arguments.programs / 'libcauseway_site.so'}",
            arguments.torch_python, "-B", str(HERE / "llama_site.py"), *map(str, words)]


def train(arguments, out):
    """Until coordinator and both sites have ended."""
    text = config.run_config_text("streaming", arguments.steps, len(NAMES), seed=1)
    model = '  preset: "tiny-1m"\n'
    assert model in text
    text = text.replace(model, model + "  qk_norm: false                 # Llama has none\n")
    (out / "run.textproto").write_text(text, encoding="utf-8")
    group = processes.ProcessGroup()
    try:
        flags = [f"--coordinator={quickstart.start_coordinator(arguments, out, group)}", f"--data={out / 'data'}",
                 "--threads=1"]
        programs = {"causeway": [str(arguments.programs / "causeway-worker"), "train"],
                    "transformers": site_command(arguments)}
        for name in NAMES:
            group.start(name, [*programs[name], *flags, f"--id={name}", f"--out={out / name}"],
                        out / name / "log")
        for process in reversed(group.processes):
            while process.popen.poll() is None:
                group.raise_if_died()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.popen.wait(0.5)
        group.raise_if_died()
    finally:
        group.stop_all()


def run_tool(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise processes.ProcessDied(f"{' '.join(map(str, command))} ended with {done.returncode}:\n"
                                    f"{done.stderr[-2000:]}")
    return done.stdout


def evaluate(arguments, out):
    """Held-out loss of the exported model, by transformers and by causeway-worker."""
    worker = arguments.programs / "causeway-worker"
    exported = out / "exported"
    run_tool(worker, "export", f"--run_dir={out / 'coordinator'}", f"--out={exported}")
    ours = json.loads(run_tool(worker, "eval", f"--checkpoint={exported}", f"--data={out / 'data'}",
                               "--device=cpu", f"--sequences={SEQUENCES}", "--json"))
    theirs = run_tool(*site_command(arguments, "evaluate", exported, out / "data", SEQUENCES))
    return float(theirs.split()[-1]), ours["loss"]


def curve(out, name):
    """Loss of every step of a site, on its own batches."""
    rows = output.JsonLinesTail(out / name / "metrics.jsonl").poll()
    return [row["train_loss"] for row in rows if row["kind"] == "step"]


def result(arguments, out):
    summary = json.loads((out / "coordinator" / "summary.json").read_text(encoding="utf-8"))
    theirs, ours = evaluate(arguments, out)
    curves = {name: curve(out, name) for name in NAMES}
    tenth = max(1, arguments.steps // 10)
    return {
        "hash_mismatches": summary["hash_mismatches"],
        "hash_checks": summary["hash_checks"],
        "rounds": summary["rounds"],
        "steps": arguments.steps,
        "eval_loss_transformers": theirs,
        "eval_loss_causeway": ours,
        "difference": abs(theirs - ours),
        "first_train_loss": {name: sum(loss[:tenth]) / tenth for name, loss in curves.items()},
        "last_train_loss": {name: sum(loss[-tenth:]) / tenth for name, loss in curves.items()},
    }


def main():
    arguments = parse_arguments()
    with contextlib.ExitStack() as stack:
        if arguments.out is None:
            arguments.out = Path(tempfile.mkdtemp(prefix="causeway_mixed_"))
            stack.callback(shutil.rmtree, arguments.out)
        lock = quickstart.claim_folder(arguments.out)
        stack.callback(os.close, lock)
        out = arguments.out.resolve()
        for name in (*NAMES, "exported"):
            shutil.rmtree(out / name, ignore_errors=True)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                quickstart.prepare_data(arguments, out)
            train(arguments, out)
            figures = result(arguments, out)
        except (processes.ProcessDied, quickstart.BadSetting) as error:
            print(f"tests/python/mixed_run: {error}", file=sys.stderr)
            return 1
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:24} {value}")
    fell = all(figures["last_train_loss"][name] < figures["first_train_loss"][name] for name in NAMES)
    good = figures["hash_mismatches"] == 0 and figures["hash_checks"] > 0 and fell
    return 0 if good and figures["difference"] <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
