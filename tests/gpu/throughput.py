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
# Beside AdamW's step, Muon's is timed for these.
MUON_SHAPES = ("gpt2-124m-shape", "llama-3.2-1b-shape")
_STEPS = 5
# Seconds of one shape, of those that both parts have for all.
_BENCH_S = 120
_TORCH_S = 150
# Gates stand a little below what an H200 gave (docs/results.md#on-a-gpu), to notice what gets slower.
ROOFLINE_GATE = 0.72
TORCH_GATE = 1.02
# At most this part of a step is Muon's beside AdamW's.
MUON_GATE = 0.04


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
    shapes = context.data["shapes"] = {}
    wrong = []
    for model, micro_batch, batch in _in_time(context, SHAPES, wrong):
        done = _bench(context, wrong, model, micro_batch, batch)
        if done is None:
            continue
        row = shapes[model] = last_object(done.output)
        context.tell(f"{model}: {row['tokens_per_second']:,.0f} tokens/s, {_of_the_roofline(row)}, "
                     f"attention by {row['attention']}, {done.seconds:.0f} s")
        if model in MUON_SHAPES and context.left() >= 1:
            done = _bench(context, wrong, model, micro_batch, batch, "--optimizer=muon")
            if done is not None:
                muon = last_object(done.output)
                row["muon_seconds_per_step"] = muon["seconds_per_step"]
                row["muon_kernels"] = [kernel for kernel in muon["kernels"]
                                       if kernel["name"].startswith("Muon")]
                # A part of AdamW's step.
                row["muon_price"] = row["muon_seconds_per_step"] / row["seconds_per_step"] - 1
                context.tell(f"{model}: with Muon a step takes {100 * row['muon_price']:+.1f} %")
    if wrong:
        raise Failed("; ".join(wrong))
    said = ", ".join(f"{model} {_of_the_roofline(row)}" for model, row in shapes.items())
    muon = {model: row["muon_price"] for model, row in shapes.items() if "muon_price" in row}
    if muon:
        said += "; Muon beside AdamW: " + ", ".join(
            f"{model} {100 * price:+.1f} % of a step" for model, price in muon.items())
    if any(row["roofline_fraction"] < ROOFLINE_GATE for row in shapes.values()):
        raise Failed(f"below {100 * ROOFLINE_GATE:.0f} % of the roofline: {said}")
    if any(price > MUON_GATE for price in muon.values()):
        raise Failed(f"Muon costs more than {100 * MUON_GATE:.0f} % of a step: {said}")
    return said


def _in_time(context, shapes, wrong):
    """Those for which there is time; `wrong` gets a line for each of the others."""
    for model, *batches in shapes:
        if context.left() < 1:
            wrong.append(f"{model}: no time was left")
        else:
            yield model, *batches


def _bench(context, wrong, model, micro_batch, batch, *flags):
    """A bench that ended well; else None, with a line in `wrong`."""
    done = context.run(
        "bench", context.program("causeway-worker"), "bench", "--device=cuda", f"--model={model}",
        f"--micro_batch={micro_batch}", f"--batch={batch}", f"--steps={_STEPS}", *flags, "--json",
        timeout_s=_BENCH_S, variables=context.program_variables)
    return done if _ended_well(context, wrong, " ".join([model, *flags]), done) else None


def _ended_well(context, wrong, what, done):
    if done.status != 0:
        why = f"not done after {done.seconds:.0f} s" if done.timed_out else done.last_lines(2)
        wrong.append(f"{what}: {why}")
        context.tell(wrong[-1])
    return done.status == 0


def _of_the_roofline(row):
    spread = max(row["rates_spread"].values())
    return (f"{100 * row['roofline_fraction']:.0f} % of the roofline (its rates "
            f"{100 * spread:.1f} % apart before and after)")


def torch(context):
    """The same models and steps in PyTorch."""
    context.need_gpu()
    if context.tools["torch"] is None:
        raise Skip("python3 has no torch")
    measured = context.results.get("bench")
    ours = measured.data.get("shapes", {}) if measured else {}
    ours = ours or context.compared.get("bench", {}).get("shapes", {})
    if not ours:
        raise Skip("there are no figures to compare with: run the part bench, too, or name the "
                   "report of an earlier run, --compare=report.json")
    script = Path(__file__).resolve().parent / "torch_baseline.py"
    shapes = context.data["shapes"] = {}
    wrong = []
    for model, micro_batch, batch in _in_time(context, [shape for shape in SHAPES if shape[0] in ours], wrong):
        settings = context.out / f"{model}.json"
        settings.write_text(json.dumps({"model": ours[model]["shape"], "batch": batch,
                                        "micro_batch": micro_batch, "steps": _STEPS}))
        done = context.run("torch", "python3", script, settings, timeout_s=_TORCH_S)
        settings.unlink()
        if not _ended_well(context, wrong, model, done):
            continue
        row = last_object(done.output)
        row["ratio"] = ours[model]["tokens_per_second"] / row["tokens_per_second"]
        shapes[model] = row
        context.tell(f"{model}: PyTorch {row['tokens_per_second']:,.0f} tokens/s, ours "
                     f"{row['ratio']:.2f} times that, {done.seconds:.0f} s")
    said = ", ".join(f"{model} {row['ratio']:.2f}" for model, row in shapes.items())
    if wrong:
        raise Failed("; ".join(wrong) + (f"; ratios: {said}" if said else ""))
    if any(row["ratio"] < TORCH_GATE for row in shapes.values()):
        raise Failed(f"less than {TORCH_GATE} times PyTorch's throughput: {said}")
    return f"times PyTorch's throughput: {said}"
