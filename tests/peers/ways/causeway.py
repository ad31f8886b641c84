"""Causeway: the settings of `causeway demo`, or two bits both ways, with an overlap by docs/links.md.

A silent site is taken for dead after 5 s, as torchft does.
"""

import math

_CONFIG = """
run_name: "peers"
train {{ steps: {steps} }}
sync {{ pattern: BALANCED fragments: {fragments} overlap_steps: {overlap} mixing: 0 {sync} }}
outer {{ optimizer: SGD learning_rate: 1 }}
membership {{ start_workers: {sites} max_workers: 4 lease_ms: 5000 }}
"""
FRAGMENTS = 4
_SYNC = {"int4": (32, 4.25, "steps_between_syncs: 32 codec_up: INT4 codec_down: INT4"),
         "lm2": (16, 2.25, "steps_between_syncs: 16 codec_up: LM2 codec_down: LM2 error_feedback: true")}


def overlap_steps(cell, bits):
    """docs/links.md: up, down, and two round trips."""
    seconds = 2 * bits * cell.parameters / FRAGMENTS / (cell.link.rate_mbit * 1e6) + 2 * cell.link.rtt_ms / 1e3
    return math.ceil(seconds / cell.step_s)


def server(cell):
    period, bits, sync = _SYNC[cell.row.variant]
    config = cell.folder / "run.textproto"
    config.write_text(_CONFIG.format(
        steps=cell.steps, sites=cell.sites, fragments=FRAGMENTS, sync=sync,
        overlap=min(period - 1, overlap_steps(cell, bits))))
    return [cell.bin / "causeway-coordinator", "serve", f"--run_dir={cell.folder / 'run'}", f"--config={config}",
            "--initial=first-site", f"--listen={cell.hub}:{cell.port}", "--insecure", "--http=off"]


def train(task):
    import causeway.torch as cw

    site = cw.join(f"{task.hub}:{task.port}", task.model, task.optimizer, id=f"site-{task.site}",
                   tokens_per_step=task.batch * 64, insecure=True)
    with site:
        task.ready()
        while not site.should_stop:
            task.step(site.current_step)
    with site.published():
        return task.values()
