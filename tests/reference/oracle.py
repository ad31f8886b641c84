#!/usr/bin/env python3
"""Holds a run of the real code (reference_trace) against an implementation that shares no code
with it, in two ways (what is awkward to encode is in tests/site/site_test.py):

  replay     The oracle is given every worker's local values at every step. Encoded deltas, merged
             and published values, answers and mixed local values must be the same, bit for bit.
  whole run  The oracle is given the initial parameters and the batches alone, and trains. The
             published values of each round must be within 1e-5 of the trace's (norm of the
             difference over the norm, per fragment), and so must every worker's local values
             after each inner step, which no codec has rounded.

  oracle.py --trace FOLDER [FOLDER ...]      exit status 1 if one of them deviates
  oracle.py --trace FOLDER --plant MUTATION  exit status 1 if the planted mistake goes unnoticed

A folder is one trace, or holds traces. Mistakes are planted in the replay and
the whole run, and each of the two alone must notice.
"""

import argparse
import collections
import sys

import numpy as np

from causeway_oracle import codecs, layout, model, optimizer, streaming, trace

LARGEST_DEVIATION = 1e-5


class Comparison:
    """Counts comparisons by kind and keeps the first difference of each kind."""

    def __init__(self):
        self.total = collections.Counter()
        self.unequal = collections.Counter()
        self.first = {}

    def same(self, kind, where, ours, theirs):
        self.total[kind] += 1
        if ours == theirs:
            return
        self.unequal[kind] += 1
        self.first.setdefault(kind, where)

    def summary(self):
        return ", ".join(f"{self.total[kind] - self.unequal[kind]} of {self.total[kind]} {kind}"
                         for kind in self.total)


def describe(key):
    text = f"fragment {key[0]}, round {key[1]}"
    return text if len(key) == 2 else f"{text}, {key[2]}"


def make_parties(recorded, mutation):
    up = codecs.CODECS[recorded.sync["codec_up"]]
    down = codecs.CODECS[recorded.sync["codec_down"]]
    gaps = layout.gaps([(tensor["offset"], tensor["rows"] * tensor["cols"])
                        for tensor in recorded.tensors])
    replicas = {
        worker: streaming.Replica(recorded.initial, recorded.fragments, gaps, up, down,
                                  recorded.sync, mutation)
        for worker in recorded.batch_sequences}
    merger = streaming.Merger(recorded.initial, recorded.fragments, up, down, recorded.outer,
                              mutation)
    return replicas, merger


def make_schedule(recorded, mutation):
    late = 1 if mutation == "late-merge" else 0
    return streaming.Schedule(len(recorded.fragments), recorded.sync["steps_between_syncs"],
                              recorded.sync["overlap_steps"] + late)


def tokens_per_step(recorded, worker):
    return recorded.batch_sequences[worker] * recorded.model["sequence_length"]


def replay(recorded, mutation):
    """Everything but the inner steps, from the trace's local values. Returns a Comparison."""
    result = Comparison()
    replicas, merger = make_parties(recorded, mutation)
    schedule = make_schedule(recorded, mutation)
    before = {worker: recorded.local_values(worker, "before") for worker in replicas}
    after = {worker: recorded.local_values(worker, "after") for worker in replicas}
    sent = set()
    for step in range(1, recorded.steps + 1):
        for worker, replica in replicas.items():
            replica.local = before[worker][step - 1].copy()
            replica.count_tokens(tokens_per_step(recorded, worker))
        for fragment, round_ in schedule.sends(step):
            contributions = {}
            for worker, replica in replicas.items():
                key = (fragment, round_, worker)
                sent.add(key)
                encoded, tokens = replica.send(fragment)
                contributions[worker] = (encoded, tokens)
                theirs = recorded.contributions.get(key, {})
                result.same("tokens and send steps", describe(key), (tokens, step),
                            (theirs.get("tokens"), theirs.get("send_step")))
                result.same("encoded deltas", describe(key), encoded,
                            recorded.delta(key) if theirs else b"")
            key = (fragment, round_)
            answer = merger.merge(fragment, contributions)
            result.same("answers", describe(key), answer, recorded.answer(key))
            result.same("published fragments", describe(key),
                        merger.published[recorded.fragments[fragment]].tobytes(),
                        recorded.published(key).tobytes())
        for fragment, round_ in schedule.merges(step):
            for replica in replicas.values():
                replica.merge(fragment, recorded.answer((fragment, round_)))
        for worker, replica in replicas.items():
            result.same("local values after a step", f"step {step}, {worker}",
                        replica.local.tobytes(), after[worker][step - 1].tobytes())
    result.same("sets of contributions", "the run", sent, set(recorded.contributions))
    return result


class Trainer:
    """The inner steps of one worker."""

    def __init__(self, recorded, worker):
        self.network = model.Transformer(recorded.model)
        self.tensors = recorded.tensors
        self.optimizer = optimizer.InnerOptimizer(recorded.train, recorded.tensors, recorded.size)
        self.inputs, self.targets = recorded.tokens(worker)

    def step(self, step, local):
        weights = {
            tensor["name"]: local[layout.values_of(tensor)].astype(np.float64).reshape(
                layout.shape_of(tensor))
            for tensor in self.tensors}
        self.loss, gradients = self.network.loss_and_gradients(weights, self.inputs[step - 1],
                                                       self.targets[step - 1])
        arena = np.zeros(local.size)
        for tensor in self.tensors:
            arena[layout.values_of(tensor)] = gradients[tensor["name"]].ravel()
        return self.optimizer.update(step, local, arena)


class Agreement:
    """How near fp32 arrays of one kind came to the trace's."""

    def __init__(self):
        self.total = self.equal = 0
        self.largest = 0.0
        self.where = ""

    def add(self, where, ours, theirs):
        self.total += 1
        self.equal += ours.tobytes() == theirs.tobytes()
        theirs = theirs.astype(np.float64)
        deviation = float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
        if not deviation <= self.largest:  # A NaN is larger than anything.
            self.largest, self.where = deviation, where

    def summary(self, kind):
        text = f"{self.equal} of {self.total} {kind} equal bit for bit, largest relative deviation "
        return text + f"{self.largest:.3g}" + (f" ({self.where})" if self.where else "")


def whole_run(recorded, mutation):
    """From the initial parameters and the batches alone. Returns how near the published values and the local ones came,
    and the workers' mean loss by step."""
    published, local, losses = Agreement(), Agreement(), []
    replicas, merger = make_parties(recorded, mutation)
    schedule = make_schedule(recorded, mutation)
    trainers = {worker: Trainer(recorded, worker) for worker in replicas}
    before = {worker: recorded.local_values(worker, "before") for worker in replicas}
    answers = {}
    for step in range(1, recorded.steps + 1):
        for worker, replica in replicas.items():
            replica.local = trainers[worker].step(step, replica.local)
            local.add(f"step {step}, {worker}", replica.local, before[worker][step - 1])
            replica.count_tokens(tokens_per_step(recorded, worker))
        losses.append(np.mean([trainer.loss for trainer in trainers.values()]))
        for fragment, round_ in schedule.sends(step):
            answers[fragment, round_] = merger.merge(
                fragment, {worker: replica.send(fragment) for worker, replica in replicas.items()})
            key = (fragment, round_)
            published.add(describe(key), merger.published[recorded.fragments[fragment]], recorded.published(key))
        for fragment, round_ in schedule.merges(step):
            for replica in replicas.values():
                replica.merge(fragment, answers[fragment, round_])
    return published, local, losses


def check(folder, mutation):
    """Prints what was compared; returns whether the replay and the whole run agree."""
    recorded = trace.Trace(folder)
    sync = recorded.sync
    print(f"{folder}: {len(recorded.rounds)} rounds of {len(recorded.fragments)} fragments, "
          f"{len(recorded.batch_sequences)} workers, H {sync['steps_between_syncs']}, "
          f"tau {sync['overlap_steps']}, alpha {sync['mixing']}, "
          f"keep {sync['keep_in_flight']}, {sync['codec_up']} up, "
          f"{sync['codec_down']} down, feedback {'on' if sync['error_feedback'] else 'off'}")
    replayed = replay(recorded, mutation)
    print(f"  replay: equal bit for bit: {replayed.summary()}")
    for kind, where in replayed.first.items():
        print(f"  replay: {kind}: the first difference is at {where}")
    published, local, losses = whole_run(recorded, mutation)
    print(f"  whole run: {published.summary('rounds')}")
    print(f"  whole run: {local.summary('local values before synchronization')}; loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return not replayed.first, max(published.largest, local.largest) <= LARGEST_DEVIATION


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", nargs="+", required=True, metavar="FOLDER")
    parser.add_argument("--plant", choices=sorted(streaming.MUTATIONS), metavar="MUTATION",
                        help="; ".join(f"{k}: {v}" for k, v in streaming.MUTATIONS.items()))
    arguments = parser.parse_args()
    if arguments.plant:
        print(f"planted: {streaming.MUTATIONS[arguments.plant]}")
    passed = True
    for folder in trace.folders(arguments.trace):
        replayed, agreed = check(folder, arguments.plant)
        if arguments.plant:
            # Each of the two comparisons alone must notice.
            passed = passed and not replayed and not agreed
        else:
            passed = passed and replayed and agreed
    if arguments.plant:
        print("noticed by both comparisons" if passed else "FAILED: the mistake went unnoticed")
    else:
        print("all agree" if passed else "FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
