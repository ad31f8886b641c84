"""Training throughput against the limits that the same run measures, and against PyTorch."""

import json
from pathlib import Path

from parts import Failed, Skip

# Shape, windows per pass, windows per step. A step is 131,072 tokens everywhere.
SHAPES = (
    ("gpt2-124m-shape", 32, 128),
    ("qwen2.5-0.5b-shape", 16, 128),
    ("llama-3.2-1b-shape", 8, 64),
    ("qwen2.5-1.5b-shape", 8, 128),
)
_STEPS = 5
_BENCH_S = 120
_TORCH_S = 120
# What the reports call good.
ROOFLINE_TARGET = 0.9
TORCH_TARGET = 1.1


def last_object(text):
    """The JSON object that a program printed last, after whatever else it printed."""
    begin = text.rfind("\n{\n")
    begin = 0 if text.startswith("{") and begin < 0 else begin + 1
    return json.loads(text[begin:])


def bench(context):
    """causeway-worker bench: whole steps, kernels one by one, measured limits."""
    if context.gpu is None:
        done = context.run("bench", context.program("causeway-worker"), "bench", "--device=cuda",
                           "--json", timeout_s=30, variables=context.program_variables)
        if done.status == 0:
            raise Failed("bench --device=cuda ran where no GPU was found")
        raise Skip(f"no GPU: {context.no_gpu}; bench says: {done.last_lines(1)}")
    data = {"shapes": {}}
    wrong = []
    for model, micro_batch, batch in SHAPES:
        done = context.run(
            "bench", context.program("causeway-worker"), "bench", "--device=cuda",
            f"--model={model}", f"--micro_batch={micro_batch}", f"--batch={batch}",
            f"--steps={_STEPS}", "--json", timeout_s=_BENCH_S,
            variables=context.program_variables)
        if done.status != 0:
            wrong.append(f"{model}: {'not done in time' if done.timed_out else done.last_lines(2)}")
            continue
        data["shapes"][model] = last_object(done.output)
    if wrong:
        raise Failed("; ".join(wrong), data)
    fractions = {model: row["roofline_fraction"] for model, row in data["shapes"].items()}
    short = [model for model, fraction in fractions.items() if fraction < ROOFLINE_TARGET]
    said = ", ".join(f"{model} {100 * fraction:.0f} %" for model, fraction in fractions.items())
    if short:
        raise Failed(f"below {100 * ROOFLINE_TARGET:.0f} % of the roofline: {said}", data)
    return f"of the roofline: {said}", data


def torch(context):
    """The same models and steps in PyTorch."""
    context.need_gpu()
    if context.tools["torch"] is None:
        raise Skip("python3 has no torch")
    measured = context.results.get("bench")
    shapes = measured.data.get("shapes", {}) if measured else {}
    if not shapes:
        raise Skip("the part bench has no figures to compare with")
    script = Path(__file__).resolve().parent / "torch_baseline.py"
    data = {"shapes": {}}
    wrong = []
    for model, micro_batch, batch in SHAPES:
        if model not in shapes:
            continue
        settings = context.out / f"{model}.json"
        settings.write_text(json.dumps({"model": shapes[model]["shape"], "batch": batch,
                                        "micro_batch": micro_batch, "steps": _STEPS}))
        done = context.run("torch", "python3", script, settings, timeout_s=_TORCH_S)
        settings.unlink()
        if done.status != 0:
            wrong.append(f"{model}: {'not done in time' if done.timed_out else done.last_lines(2)}")
            continue
        row = last_object(done.output)
        row["ratio"] = shapes[model]["tokens_per_second"] / row["tokens_per_second"]
        data["shapes"][model] = row
    said = ", ".join(f"{model} {row['ratio']:.2f}" for model, row in data["shapes"].items())
    if wrong:
        raise Failed("; ".join(wrong) + (f"; ratios: {said}" if said else ""), data)
    if any(row["ratio"] < TORCH_TARGET for row in data["shapes"].values()):
        raise Failed(f"less than {TORCH_TARGET} times PyTorch's throughput: {said}", data)
    return f"times PyTorch's throughput: {said}", data
