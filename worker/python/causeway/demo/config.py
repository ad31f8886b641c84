"""The run configuration that the demo writes, one per mode, and a reader for such files.

Every field that matters is written out, so that run.textproto alone says what a run did.
"""

from __future__ import annotations

from causeway import _textproto

MODES = ("streaming", "diloco", "data-parallel")
DEFAULT_STEPS = 480  # A minute on two cores that do nothing else.

_MUON = """\
  optimizer: MUON
  learning_rate: 3e-3            # AdamW's peak, for embedding and norms
  muon_learning_rate: 0.014
  muon_momentum: 0.95
"""
_ADAMW = """\
  optimizer: ADAMW
  learning_rate: 3e-3
"""
_SYNC = {
    "streaming": """\
  contribution: PARAMETER_DELTA
  pattern: BALANCED
  fragments: 5
  steps_between_syncs: 16        # H
  overlap_steps: 2               # tau
  mixing: 0                      # alpha
  codec_up: LM2                  # 2 bits
  codec_down: LM2
  error_feedback: true
""",
    "diloco": """\
  contribution: PARAMETER_DELTA
  fragments: 1
  steps_between_syncs: 30        # H
  overlap_steps: 0               # tau
  mixing: 0                      # alpha
  codec_up: FP32
  codec_down: FP32
""",
    "data-parallel": """\
  contribution: GRADIENT
  fragments: 1
  steps_between_syncs: 1
  overlap_steps: 0
  mixing: 0
  codec_up: BF16
  codec_down: BF16
""",
}
_OUTER = {
    "streaming": """\
  optimizer: SGD                 # the mean of the workers' values, as it is
  learning_rate: 1
""",
    "diloco": """\
  optimizer: NESTEROV
  learning_rate: 0.7
  momentum: 0.6
""",
    "data-parallel": """\
  optimizer: ADAMW               # at the coordinator, on the mean gradient
""",
}


def run_config_text(mode: str, steps: int, workers: int, seed: int) -> str:
    """The textproto of a causeway.v1.RunConfig."""
    gradients = mode == "data-parallel"
    return f"""\
# Written by `causeway demo --mode={mode}`. The fields are explained in
# proto/causeway/v1/config.proto.
run_name: "quickstart-{mode}"
model {{
  preset: "tiny-1m"
  vocabulary_size: 256           # bytes
  sequence_length: 256
}}
train {{
  steps: {steps}
  batch_sequences: 4
{_ADAMW if gradients else _MUON}\
  warmup_steps: {min(max(steps // 20, 1), steps)}
  final_learning_rate_fraction: 0.1
  clip_norm: 1
  seed: {seed}
  evaluate_every_steps: {max(1, steps // 15)}
  evaluation_sequences: 32
}}
sync {{
{_SYNC[mode]}\
}}
outer {{
{_OUTER[mode]}\
}}
membership {{
  start_workers: {workers}
  max_workers: {workers}         # the data is cut into as many parts
}}
"""


def read_fields(text: str) -> dict[str, str]:
    """Scalar fields of a textproto by dotted path: {"train.steps": "900", ...}."""
    return {".".join(path): value.strip("\"'") for path, value in _textproto.fields(text)}
