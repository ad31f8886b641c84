"""What the experiments train: every way of training once, by name, and the sizes they come in.

All variants of one scale and inner optimizer train on equally many tokens, with the same model,
budget, learning rates and number of windows per step of the schedule, all workers together. A
variant is what it changes of `streaming`, which is int4 both ways with overlap.
"""

from dataclasses import dataclass, field

from training_runs import TrainingRun

INNER = {"adamw": "AdamW", "muon": "Muon"}


@dataclass(frozen=True)
class Scale:
    """A model and a budget. Sites together take global_windows windows per step of the schedule."""

    name: str
    model: dict[str, str]
    sequence_length: int
    global_windows: int
    steps: int
    evaluation_windows: int
    evaluations: int = 6  # Evenly spread, the last one after the last step.
    prose: bool = False  # Trains on prose.py's text in place of quickstart's headers.

    @property
    def tokens(self) -> int:
        return self.steps * self.global_windows * self.sequence_length


SCALES = {scale.name: scale for scale in (
    Scale("small",
          {"layers": "6", "width": "64", "heads": "4", "mlp_width": "192"},
          sequence_length=128, global_windows=16, steps=600, evaluation_windows=256),
    # 3.6, 12, 36 and 121 tokens per parameter of prose, where the paper has 20.
    *(Scale(f"small-{name}", {"layers": "6", "width": "64", "heads": "4", "mlp_width": "192"},
            sequence_length=128, global_windows=16, steps=steps, evaluation_windows=1024,
            evaluations=evaluations, prose=True)
      for name, steps, evaluations in (("600", 600, 6), ("2k", 2000, 10), ("6k", 6000, 24),
                                       ("20k", 20000, 40))),
    # A million parameters, six tokens for each.
    Scale("tiny-1m", {"preset": '"tiny-1m"'}, sequence_length=128, global_windows=16, steps=3000,
          evaluation_windows=1024, evaluations=12, prose=True),
)}

# Peaks of the rates; the best of those of the experiment `rates` at the small scale.
_PEAKS = {"adamw": {"train.learning_rate": "3e-3"},
          "muon": {"train.muon_learning_rate": "0.02", "train.learning_rate": "1e-2"}}  # The latter for AdamW's part.
_STREAMING = {
    "sync.pattern": "BALANCED", "sync.fragments": "4", "sync.steps_between_syncs": "30",
    "sync.overlap_steps": "2", "sync.mixing": "0.5", "sync.codec_up": "INT4",
    "sync.codec_down": "INT4", "sync.error_feedback": "false", "outer.optimizer": "NESTEROV", "outer.learning_rate": "0.7",
    "outer.momentum": "0.6",
}
_BLOCKING = {"sync.overlap_steps": "0", "sync.mixing": "0"}


def _codecs(up: str, down: str) -> dict[str, str]:
    return {"sync.codec_up": up, "sync.codec_down": down}


_FP32 = _codecs("FP32", "FP32")


@dataclass(frozen=True)
class Variant:
    label: str
    changes: dict[str, str] = field(default_factory=dict)  # Settings that differ from _STREAMING.
    workers: int = 2
    mode: str = "streaming"
    inner: tuple[str, ...] = tuple(INNER)

    @property
    def plain(self) -> bool:
        """Whether it stands for data parallelism, but for the exchange."""
        return self.workers == 1 and self.changes.get("outer.learning_rate") == "1"


# The mean of all workers' values, as it is: no outer momentum, and nothing of the local values stays.
_MEAN = {"sync.mixing": "0", "outer.learning_rate": "1", "outer.momentum": "0"}
_KEEP = _MEAN | {"sync.keep_in_flight": "1"}
# The codec and H of fewer bits both ways, in the bytes of int4 at H 30.
FEWER_BITS = (("lm2", 16), ("sign1", 9))


def _fewer_bits(workers: int, codec: str, period: int, label: str = "", **inner: str) -> Variant:
    return Variant(f"mean, M {workers}, {codec} both ways, H {period}{label}",
                   _MEAN | _codecs(codec.upper(), codec.upper()) | {
                       "sync.error_feedback": "true", "sync.steps_between_syncs": str(period)}
                   | {f"train.{name}": value for name, value in inner.items()},
                   workers=workers, inner=("muon",) if inner else tuple(INNER))


# The study's rates of Muon and of what it leaves to AdamW, times a factor.
_RATES = {factor: {"train.muon_learning_rate": muon, "train.learning_rate": adamw}
          for factor, muon, adamw in (("0.5", "0.01", "5e-3"), ("0.7", "0.014", "7e-3"),
                                      ("1.4", "0.028", "1.4e-2"))}

_LINE = {"train.constant_fraction": "0.8"}

_PLAIN = _FP32 | _BLOCKING | {
    "sync.fragments": "1", "outer.learning_rate": "1", "outer.momentum": "0"}


def _rates(inner: str, label: str, **rates: str) -> Variant:
    return Variant(label, _PLAIN | {f"train.{name}": rate for name, rate in rates.items()},
                   workers=1, inner=(inner,))


VARIANTS = {
    # The same optimizer over the whole batch of every step. One worker whose deltas are taken as they
    # are is plain training, bit for bit (tests/integration/neutrality_test.cc); data parallelism with several
    # workers is that up to rounding. The gradients' own mode has AdamW alone.
    "plain": Variant("data parallel (one worker, the whole batch)", _PLAIN, workers=1),
    "data-parallel": Variant("data parallel, gradients in bf16", mode="data-parallel",
                             inner=("adamw",)),
    "diloco": Variant("DiLoCo, fp32", _FP32 | _BLOCKING | {"sync.fragments": "1"}),
    "streaming-fp32": Variant("Streaming, fp32, no overlap", _FP32 | _BLOCKING),
    "overlap-fp32": Variant("Streaming, fp32, tau 2", _FP32),
    "streaming": Variant("Streaming, int4, tau 2"),
    "e3m0": Variant("Streaming, e3m0, tau 2", _codecs("E3M0", "E3M0")),
    "lm2": Variant("lm2 up with feedback, int4 down", _codecs("LM2", "INT4") | {
        "sync.error_feedback": "true"}),
    "H10": Variant("H 10", {"sync.steps_between_syncs": "10"}),
    "H100": Variant("H 100", {"sync.steps_between_syncs": "100"}),
    **{f"tau{tau}": Variant(f"tau {tau}", {"sync.overlap_steps": str(tau)})
       for tau in (0, 1, 5, 10)},
    **{f"alpha{alpha}": Variant(f"alpha {alpha}", {"sync.mixing": alpha})
       for alpha in ("0", "0.25", "0.75")},
    **{f"M{workers}": Variant(f"M {workers}", workers=workers) for workers in (1, 4, 8)},
    # Three fragments of blocks and one of the rest: as many as `streaming` has.
    "strided": Variant("strided", {"sync.pattern": "STRIDED", "sync.fragments": "3"}),
    "sequential": Variant("sequential", {"sync.pattern": "SEQUENTIAL", "sync.fragments": "3"}),
    **{f"outer{rate}-{momentum}": Variant(
        f"rate {rate}, momentum {momentum}",
        {"outer.learning_rate": rate, "outer.momentum": momentum})
       for rate, momentum in (("0.4", "0.6"), ("1", "0.6"), ("0.7", "0"), ("0.7", "0.9"),
                              ("0.4", "0.9"))},
    "adamw1e-3": _rates("adamw", "rate 1e-3", learning_rate="1e-3"),
    "adamw1e-2": _rates("adamw", "rate 1e-2", learning_rate="1e-2"),
    "muon0.02-3e-3": _rates("muon", "rates 0.02, 3e-3", learning_rate="3e-3"),
    "muon0.04-1e-2": _rates("muon", "rates 0.04, 1e-2", muon_learning_rate="0.04"),
    **{f"plain-mu{mu}": _rates("muon", f"data parallel, Muon momentum {mu}", muon_momentum=mu)
       for mu in ("0.9", "0.975")},
    "mean": Variant("mean: outer 1 / 0, alpha 0", _MEAN),
    "mean-fp32": Variant("mean, fp32 both ways", _MEAN | _FP32),
    "mean-tau0": Variant("mean, tau 0", _MEAN | {"sync.overlap_steps": "0"}),
    "mean-tau10": Variant("mean, tau 10", _MEAN | {"sync.overlap_steps": "10"}),
    "mean-H10": Variant("mean, H 10", _MEAN | {"sync.steps_between_syncs": "10"}),
    "mean-H100": Variant("mean, H 100", _MEAN | {"sync.steps_between_syncs": "100"}),
    **{f"mean-mu{mu}": Variant(f"mean, Muon momentum {mu}", _MEAN | {"train.muon_momentum": mu},
                               inner=("muon",))
       for mu in ("0.9", "0.975")},
    **{f"mean-M{workers}-H10": Variant(f"mean, M {workers}, H 10", _MEAN | {"sync.steps_between_syncs": "10"},
                                       workers=workers)
       for workers in (4, 8, 16)},
    **{f"mean-M{workers}": Variant(f"mean, M {workers}", _MEAN, workers=workers)
       for workers in (4, 8, 16)},
    **{f"mean-M{workers}-{codec}-H{period}": _fewer_bits(workers, codec, period)
       for codec, period in FEWER_BITS for workers in (2, 4, 8, 16)},
    # What M workers might share of data parallelism's settings, which with M = 1 are as they are.
    **{f"mean-M{workers}-lm2-H16-decay": _fewer_bits(
        workers, "lm2", 16, ", weight decay over M", weight_decay=f"{0.01 / workers:g}")
       for workers in (2, 4, 8)},
    **{f"mean-M{workers}-lm2-H16-beta2": _fewer_bits(
        workers, "lm2", 16, ", beta2 ^ (1 / M)", beta2=f"{0.99 ** (1 / workers):.6f}")
       for workers in (2, 4, 8)},
    # Beside plain-mu0.975.
    **{f"mean-M{workers}-lm2-H16-mu0.975": _fewer_bits(
        workers, "lm2", 16, ", Muon momentum 0.975", muon_momentum="0.975")
       for workers in (4, 8)},
    # Both arms at the peak for 80 % of the steps, then in a line.
    "plain-line": Variant("data parallel, constant to 80 %, then a line", _PLAIN | _LINE, workers=1),
    **{f"mean-M{workers}-lm2-H16-line": _fewer_bits(
        workers, "lm2", 16, ", constant to 80 %, then a line", constant_fraction="0.8")
       for workers in (2, 4, 8)},
    # The cost of a merge that holds against some where all are honest.
    "mean-M8-clip": Variant("mean, M 8, clipped at 1.5 medians", _MEAN | {"outer.clip_factor": "1.5"}, workers=8),
    "mean-M8-trim": Variant("mean, M 8, trimmed by 1", _MEAN | {"outer.merge": "TRIMMED_MEAN"}, workers=8),
    # The same, and what was trained in flight is kept.
    "mean-keep": Variant("mean that keeps", _KEEP),
    # Inner rates times a factor, for data parallelism and for the mean.
    "plain-rates0.5": Variant("data parallel, inner rates times 0.5", _PLAIN | _RATES["0.5"], workers=1,
                              inner=("muon",)),
    **{f"mean-rates{factor}": Variant(f"mean, inner rates times {factor}", _MEAN | rates, inner=("muon",))
       for factor, rates in _RATES.items()},
    "muloco": Variant("MuLoCo's settings: outer 0.9 / 0.8, Muon momentum 0.9", {
        "sync.mixing": "0", "outer.learning_rate": "0.9", "outer.momentum": "0.8", "train.muon_momentum": "0.9"},
                      inner=("muon",)),
}


@dataclass(frozen=True)
class Experiment:
    title: str
    variants: tuple[str, ...]  # In the order of tables and plots.
    baseline: str  # Variant that the others are compared with, seed by seed.
    headline: bool = False  # All seeds, in place of the first alone.
    streaming_is: str = ""  # Name of `streaming` among these.
    in_all: bool = True  # Whether `all` means it, too.

    def label(self, variant: str) -> str:
        own = self.streaming_is if variant == "streaming" else ""
        return own or VARIANTS[variant].label


EXPERIMENTS = {
    # Long runs: what suits each side, by seeds that no claim rests on, and what is claimed.
    "tuning": Experiment(
        "What suits data parallelism and the mean",
        ("plain", "plain-mu0.9", "plain-mu0.975", "plain-line", "plain-rates0.5", "muon0.04-1e-2", "adamw1e-3", "adamw1e-2", "mean",
         "mean-rates0.5", "mean-rates0.7", "mean-rates1.4", "mean-mu0.9", "mean-mu0.975", "mean-M4", "mean-H10", "mean-tau0",
         "mean-fp32", "mean-keep",
         *(f"mean-M{workers}-lm2-H16-{what}" for what in ("decay", "beta2", "line") for workers in (2, 4, 8)),
         "mean-M4-lm2-H16-mu0.975", "mean-M8-lm2-H16-mu0.975"),
        "plain", headline=True, in_all=False),
    "gap": Experiment(
        "What is left of the gap to data parallelism",
        ("plain", "plain-mu0.9", "streaming", "muloco", "mean", "mean-fp32", "mean-tau0", "mean-tau10", "mean-H10",
         "mean-H100", "mean-M4", "mean-M4-H10", "mean-M8", "mean-M8-H10", "mean-M16", "mean-M16-H10", "mean-rates0.5",
         "mean-rates0.7", "mean-keep",
         *(f"mean-M{workers}-{codec}-H{period}" for codec, period in FEWER_BITS for workers in (2, 4, 8, 16))),
        "plain", headline=True, streaming_is="alpha 0.5, outer 0.7 / 0.6", in_all=False),
    "parity": Experiment(
        "Data parallel, DiLoCo and Streaming at equal tokens",
        ("plain", "data-parallel", "diloco", "streaming-fp32", "overlap-fp32", "streaming"),
        baseline="plain", headline=True),
    "codecs": Experiment(
        "What codecs cost",
        ("overlap-fp32", "streaming", "e3m0", "lm2"),
        baseline="overlap-fp32", headline=True),
    "period": Experiment("Steps between two syncs (H)", ("H10", "streaming", "H100"), "streaming",
                         streaming_is="H 30"),
    "overlap": Experiment("Overlap (tau)", ("tau0", "tau1", "streaming", "tau5", "tau10"), "tau0",
                          streaming_is="tau 2"),
    "mixing": Experiment("Mixing (alpha)", ("alpha0", "alpha0.25", "streaming", "alpha0.75"),
                         "streaming", streaming_is="alpha 0.5"),
    "workers": Experiment("Workers (M), the same batch together", ("M1", "streaming", "M4", "M8"),
                          "streaming", streaming_is="M 2"),
    "robust": Experiment("Merges that hold against some", ("mean-M8", "mean-M8-clip", "mean-M8-trim"),
                         "mean-M8", in_all=False),
    "patterns": Experiment("Fragments", ("strided", "sequential", "streaming"), "sequential",
                           streaming_is="balanced"),
    "outer": Experiment(
        "Outer learning rate and momentum",
        ("outer0.4-0.6", "streaming", "outer1-0.6", "outer0.7-0", "outer0.7-0.9", "outer0.4-0.9"),
        "streaming", streaming_is="rate 0.7, momentum 0.6"),
    "rates": Experiment(
        "Inner learning rates, data parallel",
        ("plain", "adamw1e-3", "adamw1e-2", "muon0.02-3e-3", "muon0.04-1e-2"), "plain"),
}


def training_run(name: str, inner: str, seed: int, scale: Scale) -> TrainingRun:
    """One run of a variant. The same arguments are the same run, whichever experiment asks for it."""
    variant = VARIANTS[name]
    if scale.global_windows % variant.workers != 0:
        raise ValueError(f"{scale.global_windows} windows cannot be shared by {variant.workers}")
    settings = {f"model.{key}": value for key, value in scale.model.items()}
    settings |= {
        "model.sequence_length": str(scale.sequence_length),
        "train.batch_sequences": str(scale.global_windows // variant.workers),
        "train.optimizer": inner.upper(),
        "train.evaluate_every_steps": str(scale.steps // scale.evaluations),
        "train.evaluation_sequences": str(scale.evaluation_windows),
    }
    settings |= _PEAKS[inner]
    if variant.mode == "streaming":
        settings |= _STREAMING
    settings |= variant.changes
    # A busy machine may starve a worker for longer than the usual lease. Every round waits for all.
    settings["membership.lease_ms"] = "3600000"
    return TrainingRun(
        f"{scale.name}-{inner}-{name}-seed{seed}", seed,
        {"scale": scale.name, "inner": inner, "variant": name}, settings, mode=variant.mode,
        workers=variant.workers, tokens=scale.tokens)


def plan(experiments: list[str], inner: list[str], seeds: list[int],
         scale: Scale) -> list[TrainingRun]:
    """Every run that the experiments need, each once. All experiments with the first seed come before
    the other seeds: a series that ends early has something to say about everything."""
    runs = {}
    for seed in seeds:
        for experiment in (EXPERIMENTS[name] for name in experiments):
            if seed != seeds[0] and not experiment.headline:
                continue
            for variant in experiment.variants:
                for optimizer in inner:
                    if optimizer in VARIANTS[variant].inner:
                        run = training_run(variant, optimizer, seed, scale)
                        runs.setdefault(run.name, run)
    return list(runs.values())
