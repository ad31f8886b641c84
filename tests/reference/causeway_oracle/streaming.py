"""Streaming DiLoCo: the schedule, the workers' side and the coordinator's side.

What is stored is fp32: local values, published values, residuals, theta and momentum. A mutation
is a mistake that somebody might make, planted here to show that the comparison would notice."""

import numpy as np

MUTATIONS = {
    "reversed-weights": "the workers' weights are handed out in the wrong order",
    "mixed-base": "a delta is taken against the mixed local value of the last merge",
    "forgotten-feedback": "what the codec left out of a delta is not carried into the next",
    "plain-momentum": "the outer step is momentum without Nesterov's look-ahead",
    "late-merge": "an answer is merged one step late",
}


class Schedule:
    def __init__(self, fragments, steps_between_syncs, overlap_steps):
        self.fragments = fragments
        self.interval = steps_between_syncs
        self.tau = overlap_steps

    def sends(self, step):
        """(fragment, round) sent after `step`, in order of fragment."""
        due = []
        for fragment in range(self.fragments):
            offset = (fragment + 1) * self.interval // self.fragments
            if step >= offset and (step - offset) % self.interval == 0:
                due.append((fragment, (step - offset) // self.interval + 1))
        return due

    def merges(self, step):
        return self.sends(step - self.tau)


class Replica:
    """One worker's fp32 values: local, published, and what its codec left out."""

    def __init__(self, initial, fragments, codec_up, codec_down, sync, mutation):
        self.local = initial.copy()
        self.published = initial.copy()
        self.base = initial.copy()  # The published values, unless a mutation says otherwise.
        self.fragments = fragments
        self.codec_up = codec_up
        self.codec_down = codec_down
        self.alpha = np.float32(sync["mixing"])
        self.mutation = mutation
        self.decay = np.float32(sync["error_feedback_decay"])
        self.residual = np.zeros_like(initial) if sync["error_feedback"] else None
        self.tokens = [0] * len(fragments)

    def count_tokens(self, tokens):
        self.tokens = [count + tokens for count in self.tokens]

    def send(self, fragment):
        """Returns (the encoded delta, the tokens trained since the last send)."""
        cut = self.fragments[fragment]
        residual = None
        if self.residual is not None and self.mutation != "forgotten-feedback":
            residual = self.residual[cut]
        encoded, left_out = self.codec_up.encode(self.base[cut], self.local[cut], residual,
                                                self.decay)
        if residual is not None:
            self.residual[cut] = left_out
        tokens, self.tokens[fragment] = self.tokens[fragment], 0
        return encoded, tokens

    def merge(self, fragment, answer):
        cut = self.fragments[fragment]
        published = self.codec_down.apply(answer, self.published[cut])
        self.published[cut] = published
        mixed = self.alpha * self.local[cut] + (np.float32(1) - self.alpha) * published
        self.local[cut] = mixed
        self.base[cut] = mixed if self.mutation == "mixed-base" else published


class Merger:
    """The coordinator's state and its outer optimizer."""

    def __init__(self, initial, fragments, codec_up, codec_down, outer, mutation):
        self.theta = initial.copy()
        self.momentum = np.zeros_like(initial)
        self.published = initial.copy()
        self.fragments = fragments
        self.codec_up = codec_up
        self.codec_down = codec_down
        self.outer = outer
        self.mutation = mutation

    def merge(self, fragment, contributions):
        """{worker id: (encoded delta, tokens)} -> the encoded answer."""
        cut = self.fragments[fragment]
        workers = sorted(contributions)
        tokens = [contributions[worker][1] for worker in workers]
        if self.mutation == "reversed-weights":
            tokens.reverse()
        g = np.zeros(cut.stop - cut.start)
        for worker, count in zip(workers, tokens):
            delta = self.codec_up.decode(contributions[worker][0], self.published[cut])
            g += count / sum(tokens) * delta
        mu, rate = self.outer["momentum"], self.outer["learning_rate"]
        b = (mu * self.momentum[cut].astype(np.float64) + g).astype(np.float32)
        self.momentum[cut] = b
        step = g + mu * b.astype(np.float64)
        if self.mutation == "plain-momentum":
            step = b.astype(np.float64)
        self.theta[cut] = (self.theta[cut].astype(np.float64) - rate * step).astype(np.float32)
        answer, _ = self.codec_down.encode(self.published[cut], self.theta[cut], None)
        self.published[cut] = self.codec_down.apply(answer, self.published[cut])
        return answer
