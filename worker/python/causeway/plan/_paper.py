"""The paper's simulator of compute utilization, beside its printed table (arXiv 2501.18512v1,
section 4.2, table 6), as far as text and tables allow to reconstruct it.

One serial compute resource and one first-in first-out link. Every layer has a forward node, an
activation-gradient node and a parameter-gradient node of step / (3 layers) each. A layer's parameter
gradient queues behind the next layer's activation gradient. The reduction of a layer that is due is
sent right after it and takes params / layers * bits / bandwidth: no latency, no ring factor, one
direction. The forward node of that layer in the next step (with overlap: tau steps later) waits for
it. The link is drained at the end.
"""

from __future__ import annotations

from typing import Dict

TARGETS = (0.50, 0.80, 0.90, 0.95, 0.99)
# Name, parameters, layers, seconds of a step.
MODELS = (("1B", 1e9, 24, 0.1), ("10B", 10e9, 48, 0.8), ("100B", 100e9, 108, 4.9))
# Name, kind, bits per parameter, overlap.
METHODS = (("data_parallel", "every step", 16, 0), ("diloco", "all at H", 16, 0),
           ("streaming", "fragments", 16, 0), ("streaming_overlap", "fragments", 16, 1),
           ("streaming_overlap_fp4", "fragments", 4, 1))
PRINTED = {
    "1B": ("86.8 152.6 184.2 222.3 569.0", "1.4 6.2 13.3 23.3 86.8", "1.4 5.2 9.1 16.0 28.1",
           "1.4 4.3 6.2 9.1 11.0", "0.4 0.9 1.7 2.0 3.0"),
    "10B": ("104.8 222.3 222.3 268.3 471.5", "1.7 7.5 16.0 33.9 104.8", "1.7 5.2 9.1 13.3 19.3",
            "1.7 3.6 5.2 6.2 7.5", "0.4 0.9 1.4 1.4 1.7"),
    "100B": ("184.2 323.8 390.7 390.7 471.5", "3.0 11.0 23.3 49.4 184.2", "2.4 6.2 9.1 11.0 19.3",
             "1.7 3.6 4.3 5.2 5.2", "0.5 0.9 1.1 1.1 1.4"),
}
GRID = [10.0 ** (-1.0 + 4.0 * k / 49) for k in range(50)]  # Gbit/s, as the paper tried.

_PERIOD, _LAYERS_PER_FRAGMENT = 100, 3


def utilization(params: float, layers: int, step_seconds: float, kind: str, bits: float, overlap: int,
                gbit_per_s: float) -> float:
    """Compute over all time of 20 steps, 2 H, or 2 H + 1, the first one being step 0."""
    steps = {"every step": 20, "all at H": 2 * _PERIOD, "fragments": 2 * _PERIOD + 1}[kind]
    node = step_seconds / (3.0 * layers)
    reduction = params / layers * bits / (gbit_per_s * 1e9)
    fragments = layers // _LAYERS_PER_FRAGMENT
    ready = [[0.0] * layers for _ in range(steps + overlap + 1)]
    now = link_free = 0.0
    for step in range(steps):
        if kind == "fragments":
            due = [step % _PERIOD == layer % fragments * _PERIOD // fragments for layer in range(layers)]
        else:
            due = [kind == "every step" or step % _PERIOD == _PERIOD - 1] * layers
        for may_begin in ready[step]:
            now = max(now, may_begin) + node
        after = ready[step + 1 + overlap]
        now += node  # The last layer's activation gradient; each parameter gradient follows the next one's.
        for layer in range(layers - 1, -1, -1):
            now += 2 * node if layer else node
            if due[layer]:
                link_free = max(link_free, now) + reduction
                after[layer] = link_free
    return steps * step_seconds / max(now, link_free)


def printed(gbit_per_s: float) -> str:
    """To two digits and then to one, which turns 1.151 into 1.1 and 2.947 into 3.0."""
    return f"{float(f'{gbit_per_s:.2f}'):.1f}"


def table() -> Dict:
    """A row for each model and method: the paper's figures, ours (points of the grid), and how many
    points lie between. A printed value that two points share is taken for the nearer one."""
    rows = []
    for model, params, layers, step in MODELS:
        for (method, kind, bits, overlap), line in zip(METHODS, PRINTED[model]):
            curve = [utilization(params, layers, step, kind, bits, overlap, rate) for rate in GRID]
            theirs, ours, apart = line.split(), [], []
            for target, text in zip(TARGETS, theirs):
                point = max((k for k, share in enumerate(curve) if share < target), default=0)
                nearest = min((k for k, rate in enumerate(GRID) if printed(rate) == text),
                              key=lambda k: abs(k - point))
                ours.append(GRID[point])
                apart.append(point - nearest)
            rows.append({"model": model, "method": method, "paper_gbit_per_s": theirs,
                         "gbit_per_s": ours, "grid_steps": apart})
    apart = [abs(steps) for row in rows for steps in row["grid_steps"]]
    return {"targets": TARGETS, "cells": len(apart), "cells_exact": apart.count(0),
            "cells_within_one": sum(steps <= 1 for steps in apart), "rows": rows}
