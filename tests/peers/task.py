"""One site's training, whoever synchronizes it: model, data, optimizer and what is measured are the same
for all. Runs in the peers' environment.

usage: task.py SPECIFICATION SITE      (SITE: its number, or "server" for what the way runs in the middle)
       task.py start MODEL TEXT FILE   writes what all sites begin with

A step is real and takes at least step_s: the sleep before its forward pass stands for a model that an
accelerator trains, and leaves the processors, which all sites share, to those who send and receive. What
a step costs follows its forward pass, so that a processor that is slower for a while is nobody's loss.
"""

import collections
import copy
import hashlib
import importlib
import json
import math
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "worker" / "python" / "examples"), str(ROOT / "worker" / "python"),
                str(Path(__file__).resolve().parent)]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from small_transformer import Shape, SmallTransformer  # noqa: E402
from token_shards import draw_windows, held_out_windows, open_data  # noqa: E402

TOKENS = 64  # Of a window.
SLOTS = 4    # The data is cut into as many parts; a site draws from its own.
HELD_OUT_WINDOWS = 256
WARMUP, PEAK, FINAL = 0.1, 3e-3, 0.1  # Shares of the steps and of the rate.
# The presets tiny-1m and small-10m of causeway-worker, with shorter windows.
# Steps and windows of what trained before: from nothing a model leaves its first plateau by chance, and
# that would hide what differs.
BEFORE = {"1m": (500, 8), "10m": (150, 8)}
SHAPES = {"1m": Shape(sequence_length=TOKENS),
          "10m": Shape(layers=8, width=320, heads=5, kv_heads=5, head_dim=64, mlp_width=864,
                       sequence_length=TOKENS)}


def loss_of(model, windows):
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def descend(model, optimizer, loss, backward=torch.Tensor.backward):
    backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


class Task:
    """What a way trains. `step` does one inner step; everything else is the way's own."""

    def __init__(self, specification, site):
        for name, value in specification.items():
            setattr(self, name, value)
        self.site = site
        self.folder = Path(self.folder)
        torch.set_num_threads(1)
        torch.manual_seed(1)
        self.model = SmallTransformer(SHAPES[self.model_name])
        self.model.load_state_dict(torch.load(self.start))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=PEAK, weight_decay=0.1)
        self.data, self.held_out = open_data(Path(self.text))
        self._forwards, self._cost = collections.deque(maxlen=15), None  # Seconds; a step's, in forward passes.
        self._log = open(self.folder / f"steps-{site}.jsonl", "a", encoding="utf-8")
        self.say(start=True)

    @property
    def address(self):
        return self.addresses[self.site]

    def say(self, **line):
        self._log.write(json.dumps({"t": time.time(), **line}) + "\n")
        self._log.flush()

    def ready(self):
        """Until all sites of the beginning are. The clock starts here, so nobody's imports count."""
        (self.folder / f"ready-{self.site}").touch()
        while not all((self.folder / f"ready-{site}").exists() for site in range(self.sites)):
            time.sleep(0.01)

    def _own_cost(self):
        """Processor time of a step that nobody synchronizes, in forward passes. Steps a copy of the model."""
        model, costs = copy.deepcopy(self.model), []
        optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK)
        for _ in range(12):
            begin = time.thread_time()
            loss = self._loss(model, 0)
            self._forwards.append(time.thread_time() - begin)
            descend(model, optimizer, loss)
            costs.append((time.thread_time() - begin) / self._forwards[-1])
        return statistics.median(costs[4:])

    def _loss(self, model, step):
        windows = torch.from_numpy(draw_windows(
            self.data, TOKENS, self.batch, seed=1, slot=self.site, slots=SLOTS,
            first_draw=step * self.batch))
        return loss_of(model, windows)

    def step(self, step, model=None, optimizer=None, backward=torch.Tensor.backward):
        """Step number `step`, from 0, of this site. Model and optimizer: wrapped ones."""
        optimizer = optimizer or self.optimizer
        if self._cost is None:
            self._cost = self._own_cost()
        begin = time.time()
        if [self.site, step] == self.nan:
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.fill_(math.nan)
        warmup = WARMUP * self.steps
        done = min(1.0, max(0.0, (step - warmup) / (self.steps - warmup)))
        factor = min(1.0, (step + 1) / warmup) * (FINAL + (1 - FINAL) * (1 + math.cos(math.pi * done)) / 2)
        for group in self.optimizer.param_groups:
            group["lr"] = PEAK * factor
        # A wrapper may keep its own: hivemind's param_groups are copies.
        rates = {group["lr"] for group in optimizer.param_groups}
        if rates != {PEAK * factor}:
            raise RuntimeError(f"step {step} has the learning rates {rates}, not {PEAK * factor}")
        time.sleep(max(0.0, self.step_s - self._cost * statistics.median(self._forwards)))
        forward = time.thread_time()
        loss = self._loss(model or self.model, step)
        self._forwards.append(time.thread_time() - forward)
        descend(self.model, optimizer, loss, backward)
        self.say(step=step, begin=begin, loss=loss.item())

    def values(self):
        return {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}

    @torch.no_grad()
    def finish(self, values, **more):
        """The clock stops. values: by parameter's name, the model that this way has to show."""
        end = time.time()
        self.model.load_state_dict(values)
        windows = torch.from_numpy(held_out_windows(self.held_out, TOKENS, HELD_OUT_WINDOWS))
        losses = [self.model.loss(part).item() for part in windows.split(16)]
        digest = hashlib.sha256()
        for name in sorted(values):
            digest.update(values[name].contiguous().numpy().tobytes())
        final = {"end": end, "loss": statistics.fmean(losses), "sha256": digest.hexdigest(),
                 "parameters": sum(value.numel() for value in values.values()), **more}
        path = self.folder / f"final-{self.site}.json"
        path.with_suffix(".new").write_text(json.dumps(final))
        path.with_suffix(".new").rename(path)


def make_start(name, text, file):
    """The model after its steps BEFORE, on a part of the text that no site has."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = SmallTransformer(SHAPES[name])
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, weight_decay=0.1)
    data, _ = open_data(Path(text))
    steps, batch = BEFORE[name]
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = PEAK * min(1.0, (step + 1) / 50)
        windows = torch.from_numpy(draw_windows(
            data, TOKENS, batch, seed=1, slot=SLOTS - 1, slots=SLOTS, first_draw=step * batch))
        loss = loss_of(model, windows)
        descend(model, optimizer, loss)
    print(f"{name}: loss {loss.item():.2f} after {steps} steps", file=sys.stderr)
    torch.save(model.state_dict(), file + ".new")
    Path(file + ".new").rename(file)


def main():
    if sys.argv[1] == "start":
        make_start(*sys.argv[2:])
        return
    specification = json.loads(Path(sys.argv[1]).read_text())
    way = importlib.import_module(f"ways.{specification['way']}")
    if sys.argv[2] == "server":
        way.serve(specification)
        return
    task = Task(specification, int(sys.argv[2]))
    task.finish(way.train(task))


if __name__ == "__main__":
    main()
