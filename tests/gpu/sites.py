"""Sites of PyTorch on the GPU: alone (eager, compiled, as a CUDA graph), two at once, and one beside a
causeway-worker."""

import json
import time

from parts import Failed, Skip
from throughput import last_object
from training import Run, make_data

# At most this much longer is a step of a site, by median and by mean.
SITE_TARGET = 1.01
_PROCESS_S = 75
_BYTES = 256  # Tokens of make_data's text.
_CONFIG = """
model { %(model)s vocabulary_size: %(vocabulary)d }
train { steps: %(steps)d batch_sequences: %(batch)d seed: 7 evaluation_sequences: 2 }
sync { fragments: 4 pattern: BALANCED steps_between_syncs: %(between)d overlap_steps: 4 mixing: 0.5
       codec_up: INT4 codec_down: INT4 }
membership { start_workers: %(sites)d max_workers: %(sites)d }
"""
# 124M parameters; 8 windows of 1024 tokens take some 50 ms in eager PyTorch.
_ON_A_GPU = {"model": 'preset: "gpt2-124m-shape"', "vocabulary": 50257, "steps": 96, "batch": 8,
             "between": 16, "plain_steps": 40}
_REHEARSED = {"model": "layers: 2 width: 32 heads: 2 mlp_width: 64 sequence_length: 32",
              "vocabulary": _BYTES, "steps": 20, "batch": 2, "between": 8, "plain_steps": 4}
# Name, sites of PyTorch, whether a causeway-worker trains beside them, and how they make a step
# (torch_site.py).
_RUNS = (("alone", 1, False, "eager"), ("two", 2, False, "eager"),
         ("beside_a_worker", 1, True, "eager"), ("compiled", 1, False, "compiled"),
         ("captured", 1, False, "captured"))


def _train(context, kind, name, sites, with_worker, way):
    """A run's result: of each site, and the coordinator's hashes."""
    data = make_data(context) if with_worker else None
    everyone = sites + int(with_worker)
    if with_worker:
        kind = {**kind, "vocabulary": _BYTES}
    with Run(context, f"sites_{name}", _CONFIG % {**kind, "sites": everyone}, data) as run:
        end = time.monotonic() + min(_PROCESS_S, context.left())
        address = run.serve(end)
        children = []
        for index in range(sites):
            settings = run.folder / f"site-{index}.json"
            settings.write_text(json.dumps({
                "coordinator": address, "id": f"site-{index}", "values": "device",
                "way": way, "plain_steps": kind["plain_steps"],
                "micro_batch": kind["batch"], "batch": kind["batch"], "meet": str(run.folder),
                "processes": sites}))
            children.append((f"site-{index}", run.start_python(
                f"site-{index}", context.root / "tests/gpu/torch_site.py", settings)))
        if with_worker:
            children.append(("worker-0", run.start_worker("worker-0", address, "auto")))
        run.finish(children, end)
        summary = run.coordinator_summary()
        return {"sites": [last_object((run.folder / f"site-{index}.log").read_text())
                          for index in range(sites)],
                "hash_checks": summary["hash_checks"],
                "hash_mismatches": summary["hash_mismatches"]}


def _said(name, row):
    return f"{name} " + " and ".join(
        f"{site['overhead_median']:.4f} (mean {site['overhead_mean']:.4f}, "
        f"{1e3 * site['plain_seconds']['median']:.1f} ms without)" for site in row["sites"])


def sites(context):
    """What a step of a PyTorch loop costs more as a site, by median and by mean."""
    packed = (context.pack / "python/causeway").exists()
    if context.tools["torch"] is None or not packed:
        context.need_gpu()
        raise Skip("python3 has no torch" if packed else "the pack has no Python package")
    rehearsed = context.gpu is None
    kind = _REHEARSED if rehearsed else _ON_A_GPU
    for name, count, with_worker, way in _RUNS:
        if rehearsed and way != "eager":
            continue
        row = context.data[name] = _train(context, kind, name, count, with_worker, way)
        context.tell(_said(name, row))
        if row["hash_mismatches"] or not row["hash_checks"]:
            raise Failed(f"{name}: {row['hash_mismatches']} of {row['hash_checks']} hashes differ")
    every = [site for row in context.data.values() for site in row["sites"]]
    alone = [site for name, count, with_worker, _ in _RUNS if count == 1 and not with_worker
             for site in context.data.get(name, {}).get("sites", [])]
    hashes = sum(row["hash_checks"] for row in context.data.values())
    context.data["overhead_median"] = max(site["overhead_median"] for site in alone)
    context.data["overhead_mean"] = max(site["overhead_mean"] for site in alone)
    context.data["hash_mismatches"] = 0
    if rehearsed:
        raise Skip(f"no GPU: {context.no_gpu}; on the CPU {len(every)} sites trained, "
                   f"{hashes} hashes equal")
    said = ", ".join(_said(name, context.data[name]) for name, *_ in _RUNS)
    if any(site["values"] != "DeviceValues" for site in every):
        raise Failed(f"values were not on the device: {said}")
    if max(context.data["overhead_median"], context.data["overhead_mean"]) > SITE_TARGET:
        raise Failed(f"more than {SITE_TARGET}: {said}")
    return f"times a step without: {said}; {hashes} hashes equal"
