"""What training makes of a thin link: the share of the time that workers compute.

Each model trains in four ways over the same links, whose rate is a small multiple of the least that
streaming could do with: every parameter of a fragment has to cross once each way in H steps,

    bound = parameters * bits per parameter / (H * step time)      (arXiv 2501.18512)

A step's time is set by --min_step_time, so the bound is exact and the processor of this machine is
no part of the result; what steps really took is reported, too.
"""

import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from network import LinkSettings, Network
from processes import Failed, working_folder
from training import make_data, train

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experiments"))

PERIOD = 30  # H
RTT_MS = 100
WORKERS = 2

_CONFIG = """
run_name: "{name}"
model {{ preset: "{model}" sequence_length: {tokens} }}
train {{ steps: {steps} batch_sequences: 1 optimizer: ADAMW seed: 1 evaluation_sequences: 1 }}
sync {{ {sync} }}
{outer}
membership {{ start_workers: 2 max_workers: 2 quorum: 2 lease_ms: 60000 }}
"""

_STREAMING = ("pattern: BALANCED fragments: {fragments} steps_between_syncs: 30 overlap_steps: "
              "{overlap} mixing: 0.5 codec_up: INT4 codec_down: INT4")
_DILOCO = ("fragments: 1 steps_between_syncs: 30 overlap_steps: 0 mixing: 0 codec_up: {codec} "
           "codec_down: {codec}")
_PARALLEL = ("contribution: GRADIENT fragments: 1 steps_between_syncs: 1 overlap_steps: 0 mixing: 0 "
             "codec_up: BF16 codec_down: BF16")


@dataclass(frozen=True)
class Model:
    """What of a model matters here."""

    preset: str
    tokens: int   # Per step and worker.
    step_ms: int  # Long enough for two workers on this machine.
    fragments: int
    overlap: int


MODELS = (Model("tiny-1m", tokens=64, step_ms=200, fragments=30, overlap=8),
          Model("small-10m", tokens=32, step_ms=400, fragments=30, overlap=8))


@dataclass(frozen=True)
class Mode:
    name: str
    label: str
    sync: str
    outer: str = ""
    periods: int = 2
    skipped_periods: int = 1  # Those at the start that are not counted.
    steps_per_period: int = PERIOD

    @property
    def steps(self):
        return self.periods * self.steps_per_period

    @property
    def skipped(self):
        return self.skipped_periods * self.steps_per_period


MODES = (
    Mode("streaming", "streaming, int4, overlap", _STREAMING, periods=10, skipped_periods=2),
    Mode("diloco-int4", "DiLoCo, int4", _DILOCO.replace("{codec}", "INT4"), periods=4),
    Mode("diloco", "DiLoCo, fp32", _DILOCO.replace("{codec}", "FP32"), periods=2, skipped_periods=0),
    Mode("data-parallel", "data parallel, bf16", _PARALLEL, "outer { optimizer: ADAMW }",
         periods=3, steps_per_period=1),
)


def config_text(model, mode):
    return _CONFIG.format(
        name=f"{mode.name}-{model.preset}", model=model.preset, tokens=model.tokens,
        steps=mode.steps, outer=mode.outer,
        sync=mode.sync.format(fragments=model.fragments, overlap=model.overlap))


def steady(worker, skipped):
    """Of the steps after the skipped ones, to the end of the last one's synchronization."""
    steps = worker["steps"]
    first = next(line for line in steps if line["step"] >= max(1, skipped))
    last = steps[-1]
    wall = last["unix_s"] - first["unix_s"]
    if wall <= 0:
        raise Failed("too few steps to measure")
    compute = last["compute_s"] - first["compute_s"]
    return {
        "utilization": compute / wall,
        "compute_s": compute,
        "blocked_s": last["blocked_s"] - first["blocked_s"],
        "wall_s": wall,
        "step_ms": 1000 * compute / (last["step"] - first["step"]),
    }


def run_one(options, model, mode, settings):
    """One training over links of these settings: utilization of its steady part, and what crossed."""
    with Network(options.bin / "causeway-wan-link", [settings] * WORKERS,
                 congestion=options.congestion) as network, working_folder() as folder:
        result = train(network, options.bin, folder, config_text(model, mode),
                       make_data(options.bin, folder),
                       [f"--min_step_time={model.step_ms}ms", "--checkpoint_interval=0"],
                       timeout_s=3600)
        links = [link.timeline() for link in network.links]
        congestion = network.congestion_control()
    workers = [steady(worker, mode.skipped) for worker in result["workers"]]
    # From the first step on: the state fetched at the join is no part of training.
    begin = min(worker["steps"][0]["unix_s"] for worker in result["workers"])
    return {
        "mode": mode.name, "label": mode.label, "steps": mode.steps,
        "utilization": statistics.mean(worker["utilization"] for worker in workers),
        "utilization_of_whole_run": statistics.mean(
            worker["summary"]["compute_utilization"] for worker in result["workers"]),
        "step_ms": statistics.mean(worker["step_ms"] for worker in workers),
        "workers": workers, "rounds": len(result["rounds"]),
        "parameters": result["workers"][0]["summary"]["parameters"], "congestion_control": congestion,
        "links": [_bytes(link, begin) for link in links],
    }


def _bytes(link, begin_unix_s):
    """Of a link, each way, from then on."""
    first = max(0, int((begin_unix_s - link["began_unix_s"]) / link["timeline_bin_s"]))
    return {f"{way}_bytes": sum(link[way]["timeline"][first:]) for way in ("up", "down")}


def bytes_per_sync(options, model, codec="INT4"):
    """Of one worker and direction when every parameter is synchronized once."""
    with Network(options.bin / "causeway-wan-link", [LinkSettings(1000, 0)] * WORKERS) as network, \
            working_folder() as folder:
        mode = Mode("size", "", _DILOCO.replace("{codec}", codec), periods=1)
        result = train(network, options.bin, folder, config_text(model, mode),
                       make_data(options.bin, folder))
    row = result["rounds"][0]
    return row["bytes_in"] / WORKERS, result["workers"][0]["summary"]["parameters"]


def run_utilization(options, progress):
    """All modes of all models; a dictionary."""
    models = []
    for model in MODELS:
        size, parameters = bytes_per_sync(options, model)
        bound_mbit = size * 8e-6 / (PERIOD * model.step_ms / 1000)
        settings = LinkSettings(rate_mbit=options.bound_factor * bound_mbit, rtt_ms=RTT_MS)
        runs = []
        for mode in MODES:
            progress(f"{model.preset}, {mode.label}, {settings.rate_mbit:.2f} Mbit/s ...")
            runs.append(run_one(options, model, mode, settings))
            progress(f"    computing {100 * runs[-1]['utilization']:.2f} % of the time")
        models.append({
            "model": model.preset, "parameters": parameters, "bits_per_parameter":
            size * 8 / parameters, "steps_between_syncs": PERIOD, "step_ms": model.step_ms,
            "fragments": model.fragments, "overlap_steps": model.overlap,
            "bound_mbit": bound_mbit, "rate_mbit": settings.rate_mbit,
            "bound_factor": options.bound_factor, "rtt_ms": RTT_MS, "runs": runs})
    return {"models": models}


# --wire: H, and data parallelism beside Streaming with several codecs.
_WIRE_PERIOD = 100
_WIRE_MODEL = Model("tiny-1m", tokens=64, step_ms=150, fragments=10, overlap=5)


def _wire_mode(name, label, codecs):
    return Mode(name, label, "pattern: BALANCED fragments: {fragments} steps_between_syncs: 100 "
                "overlap_steps: {overlap} mixing: 0.5 " + codecs, periods=3, skipped_periods=0,
                steps_per_period=_WIRE_PERIOD)


_WIRE_MODES = (
    replace(MODES[-1], periods=30, skipped_periods=0),
    _wire_mode("int4", "Streaming, H 100, int4 both ways", "codec_up: INT4 codec_down: INT4"),
    _wire_mode("int4-entropy", "the same, compressed without loss",
               "codec_up: INT4 codec_down: INT4 entropy_up: true entropy_down: true"),
    _wire_mode("lm2", "Streaming, H 100, lm2 up, int4 down", "codec_up: LM2 codec_down: INT4 error_feedback: true"),
)


def run_wire(options, progress):
    """IP packets with all their headers from the first step to the last: acknowledgements, heartbeats,
    telemetry and gRPC's frames included. By worker and step, and how many times fewer than in the paper's
    count of data parallelism: 16 bits per parameter and step, one way."""
    report = {"command": "tests/wan/run --wire", "model": _WIRE_MODEL.preset,
              "steps_between_syncs": _WIRE_PERIOD, "step_ms": _WIRE_MODEL.step_ms, "rows": []}
    for mode in _WIRE_MODES:
        progress(f"{mode.label} ...")
        run = run_one(options, _WIRE_MODEL, mode, LinkSettings(rate_mbit=200, rtt_ms=20))
        # Counting begins when the first step is over, of data parallelism with its exchange.
        steps = mode.steps - (mode.name == "data-parallel")
        wire = {}
        for way in ("up", "down"):
            wire[way] = statistics.fmean(link[f"{way}_bytes"] for link in run["links"]) / steps
            wire[f"{way}_of_paper"] = 2 * run["parameters"] / wire[way]
        report["rows"].append({"name": mode.name, "label": mode.label, "steps": mode.steps,
                               "parameters": run["parameters"], "wire": wire})
    return report


def wire_table(report):
    """As in docs/results.md."""
    base = report["rows"][0]["wire"]
    lines = ["| | bytes per worker and step, up / down | fewer than data parallel here, up / down | "
             "fewer than 16 bits per parameter and step, up / down |", "| --- | ---: | ---: | ---: |"]
    for row in report["rows"]:
        moved = row["wire"]
        lines.append(f"| {row['label']} | {moved['up']:,.0f} / {moved['down']:,.0f} | "
                     f"{base['up'] / moved['up']:.0f}x / {base['down'] / moved['down']:.0f}x | "
                     f"{moved['up_of_paper']:.0f}x / {moved['down_of_paper']:.0f}x |")
    return "\n".join(lines)


def utilization_table(report):
    """As in docs/results.md."""
    lines = ["| model | link | " + " | ".join(run["label"] for run in report["models"][0]["runs"])
             + " |", "| --- | ---: |" + " ---: |" * len(report["models"][0]["runs"])]
    for model in report["models"]:
        cells = " | ".join(f"{100 * run['utilization']:.2f} %" for run in model["runs"])
        lines.append(f"| {model['model']} | {model['rate_mbit']:.2f} Mbit/s | {cells} |")
    return "\n".join(lines)


def utilization_figure(report):
    """As SVG text. Matplotlib takes a second to load, so only who wants a figure does."""
    import plots
    groups = [(f"{model['model']} over {model['rate_mbit']:.2f} Mbit/s, {model['bound_factor']:g} "
               f"times the bound; {model['rtt_ms']} ms",
               [(run["label"], run["utilization"]) for run in model["runs"]])
              for model in report["models"]]
    return plots.standalone(plots.shares(groups, "computing, % of the time"))
