"""A laboratory of the method's quality: small models on one GPU, many sites, several seeds.

A study is a file (quality.json is the default one), so that it is prepared where there is no GPU:

- model: fields of ModelConfig; the text's 256 bytes are the vocabulary
- steps; windows: per step, of all sites together; seeds
- settings: fields of RunConfig by dotted path, of every variant
- variants: by name, workers and the settings that differ; baseline names the one that others are
  compared with, seed by seed
- data: a folder whose .py files are the text; Python's own library if left out
- device: cuda, or cpu to rehearse a study

Trainings go seed by seed, in the order of the variants, while time is left.
"""

import json
import sysconfig
import time
from pathlib import Path

from parts import Failed, Skip
from training import Run, make_data

DEFAULT = Path(__file__).resolve().parent / "quality.json"
_KEYS = {"model": dict, "steps": int, "windows": int, "seeds": list, "settings": dict,
         "baseline": str, "variants": dict}
_OPTIONAL = {"data": str, "device": str}


class StudyError(Exception):
    """What of a study cannot be, and what would do."""


def read_study(path, changes=()):
    """A study, checked. `changes`: settings of every variant in the form KEY=VALUE."""
    try:
        study = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise StudyError(f"{path} is no study: {error}") from None
    if not isinstance(study, dict):
        raise StudyError(f"{path} must be an object with {', '.join(_KEYS)}")
    for key, kind in {**_KEYS, **_OPTIONAL}.items():
        if key not in study and key not in _OPTIONAL:
            raise StudyError(f"{path} lacks {key!r}")
        if key in study and not isinstance(study[key], kind):
            raise StudyError(f"{path}: {key} must be of type {kind.__name__}; it is {study[key]!r}")
    unknown = sorted(set(study) - set(_KEYS) - set(_OPTIONAL))
    if unknown:
        raise StudyError(f"{path}: there is no {unknown[0]!r}; known: "
                         f"{', '.join([*_KEYS, *_OPTIONAL])}")
    if not study["seeds"] or not all(type(seed) is int and seed >= 0 for seed in study["seeds"]):
        raise StudyError(f"{path}: seeds must be whole numbers from 0 on; they are {study['seeds']}")
    for name, variant in study["variants"].items():
        wrong = sorted(set(variant) - {"workers", "settings"})
        if wrong or not isinstance(variant.get("workers"), int):
            raise StudyError(f"{path}: {name} must have workers, and may have settings; "
                             f"it has {variant}")
        if variant["workers"] < 1 or study["windows"] % variant["workers"]:
            raise StudyError(f"{path}: windows = {study['windows']} must be a multiple of the "
                             f"workers of {name}, {variant['workers']}")
    if study["baseline"] not in study["variants"]:
        raise StudyError(f"{path}: the baseline {study['baseline']!r} is none of the variants "
                         f"{', '.join(study['variants'])}")
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or "." not in key:
            raise StudyError(f"--set={change} must be KEY=VALUE, as sync.steps_between_syncs=10")
        study["settings"][key] = value
        for name, variant in study["variants"].items():
            if name != study["baseline"] and key in variant.get("settings", {}):
                raise StudyError(f"--set={change}: {name} has a value of its own for {key}")
    return study


def config_text(study, variant, seed):
    """run.textproto of one training."""
    workers = variant["workers"]
    lines = ["model {", "  vocabulary_size: 256"]
    lines += [f"  {name}: {_literal(value)}" for name, value in study["model"].items()]
    lines += ["}", f"train {{ steps: {study['steps']} seed: {seed} "
              f"batch_sequences: {study['windows'] // workers} }}",
              f"membership {{ start_workers: {workers} max_workers: {workers} }}"]
    for path, value in {**study["settings"], **variant.get("settings", {})}.items():
        message, _, name = path.rpartition(".")
        lines.append(f"{message} {{ {name}: {_literal(value)} }}")
    return "\n".join(lines) + "\n"


def _literal(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def quality(context):
    """Held-out loss of every variant and seed, and its distance from the baseline's."""
    try:
        study = read_study(context.study or DEFAULT, context.changes)
    except StudyError as error:
        raise Failed(str(error)) from None
    device = study.get("device", "cuda")
    if device == "cuda":
        context.need_gpu()
    text = study.get("data") or sysconfig.get_paths()["stdlib"]
    data = make_data(context, "quality_tokens", text, ".py")
    rows = context.data["runs"] = []
    context.data["study"] = study
    left = []
    for seed in study["seeds"]:
        for name, variant in study["variants"].items():
            if context.left() < _expected_s(rows, name):
                left.append(f"{name} of seed {seed}")
                continue
            try:
                rows.append(_train(context, study, name, variant, seed, device, data, rows))
            except Failed:
                if context.left() > 1:
                    raise
                left.append(f"{name} of seed {seed}")
                continue
            context.tell(_said(rows[-1]))
    if not rows:
        raise Skip("no time was left for a single training; give more --minutes")
    wrong = [row for row in rows if row["hash_mismatches"] or not row["hash_checks"]]
    if wrong:
        raise Failed(f"{len(wrong)} trainings have hashes that differ: {wrong[0]['variant']}")
    context.data["gaps"] = gaps(rows, study["baseline"])
    said = "; ".join(f"{name} {row['mean']:+.4f} ({row['seeds']} seeds)"
                     for name, row in context.data["gaps"].items())
    return f"minus {study['baseline']}: {said or 'nothing to compare'}" + (
        f"; not run: {', '.join(left)}" if left else "")


def _expected_s(rows, name):
    """What the longest training of the variant took; 1 if it has not run."""
    return max((row["seconds"] for row in rows if row["variant"] == name), default=1)


def _train(context, study, name, variant, seed, device, data, rows):
    begin = time.monotonic()
    with Run(context, f"quality_{name}_{seed}", config_text(study, variant, seed), data) as run:
        workers = run.train(device, variant["workers"], context.left())
        summary = run.coordinator_summary()
    lines = [line for worker in workers for line in worker["lines"] if line["kind"] == "eval"]
    last = max(lines, key=lambda line: line["step"])
    base = next((row for row in rows if row["seed"] == seed
                 and row["variant"] == study["baseline"]), None)
    parameters = summary["parameters"]
    scale = parameters * study["steps"] * variant["workers"]
    return {"variant": name, "seed": seed, "workers": variant["workers"],
            "loss": last["eval_loss"],
            "gap": last["eval_loss"] - base["loss"] if base else None,
            "bytes_up_per_parameter_and_step": summary["bytes_up"] / scale,
            "bytes_down_per_parameter_and_step": summary["bytes_down"] / scale,
            "hash_checks": summary["hash_checks"], "hash_mismatches": summary["hash_mismatches"],
            "evaluations": [[line["step"], line["eval_loss"]] for line in lines],
            "seconds": time.monotonic() - begin}


def _said(row):
    gap = "" if not row["gap"] else f", {row['gap']:+.4f}"
    return (f"{row['variant']}, seed {row['seed']}: loss {row['loss']:.4f}{gap}, "
            f"{row['bytes_up_per_parameter_and_step']:.4f} bytes up per parameter and step, "
            f"{row['seconds']:.0f} s")


def gaps(rows, baseline):
    """By variant, the mean and each of the differences from the baseline with the same seed."""
    found = {}
    for row in rows:
        if row["variant"] != baseline and row["gap"] is not None:
            found.setdefault(row["variant"], []).append(row["gap"])
    return {name: {"mean": sum(values) / len(values), "seeds": len(values), "by_seed": values}
            for name, values in found.items()}
