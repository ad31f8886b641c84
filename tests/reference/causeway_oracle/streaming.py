"""Streaming DiLoCo: the schedule, the workers' side and the coordinator's side.

What is stored is fp32: local values, published values, residuals, theta and momentum. A mutation
is a mistake that somebody might make, planted here to show that the comparison would notice."""

import numpy as np

MUTATIONS = {
    "reversed-weights": "the workers' weights are handed out in the wrong order",
    "mixed-base": "a delta is taken against the mixed local value of the last merge",
    "forgotten-feedback": "what the codec left out of a delta is not carried into the next",
    "mean-merge": "norms are not merged apart from directions",
    "unclipped": "no delta is shortened, however long it is",
    "untrimmed": "the largest and smallest values count as well",
    "uncorrected-adam": "the bias of Adam's moments is always corrected as in the first round",
    "late-merge": "an answer is merged one step late",
    "diluted-scale": "what lies between tensors counts in the mean that is a block's scale",
    "dropped-flight": "what was trained between a send and its merge is not kept",
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

    def __init__(self, initial, fragments, gaps, codec_up, codec_down, sync, mutation):
        self.gaps = gaps  # layout.gaps
        self.local = initial.copy()
        self.published = initial.copy()
        self.base = initial.copy()  # The published values, unless a mutation says otherwise.
        self.fragments = fragments
        self.codec_up = codec_up
        self.codec_down = codec_down
        self.alpha = np.float32(sync["mixing"])
        self.keep = 0.0 if mutation == "dropped-flight" else sync["keep_in_flight"]
        self.sent = initial.copy()  # The local values, each as of its fragment's last send.
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
        target = self.local[cut].copy()
        means = self.codec_up.scale_is_mean or self.codec_down.scale_is_mean
        if means and self.mutation != "diluted-scale":
            self._mirror_into_gaps(cut, target, residual)
        encoded, left_out = self.codec_up.encode(self.base[cut], target, residual, self.decay)
        if residual is not None:
            self.residual[cut] = left_out
        self.sent[cut] = self.local[cut]
        tokens, self.tokens[fragment] = self.tokens[fragment], 0
        return encoded, tokens

    def _mirror_into_gaps(self, cut, target, residual):
        places, mirrored = self.gaps
        here = (places >= cut.start) & (places < cut.stop)
        to, source = places[here] - cut.start, mirrored[here] - cut.start
        base = self.base[cut]
        target[to] = base[to] - (base[source] - target[source])
        if residual is not None:
            residual[to] = residual[source]

    def merge(self, fragment, answer):
        cut = self.fragments[fragment]
        published = self.codec_down.apply(answer, self.published[cut])
        self.published[cut] = published
        if self.keep > 0:
            in_flight = self.local[cut].astype(np.float64) - self.sent[cut]
            mixed = (published + self.keep * in_flight).astype(np.float32)
        else:
            mixed = self.alpha * self.local[cut] + (np.float32(1) - self.alpha) * published
        self.local[cut] = mixed
        self.base[cut] = mixed if self.mutation == "mixed-base" else published


def ordered_sum(values):
    """One after the other; numpy.sum adds in pairs."""
    return np.cumsum(values)[-1] if values.size else np.float64(0)


def norm(x):
    """The Euclidean norm, in the order of summation that docs/algorithm.md states."""
    total = np.float64(0)
    for begin in range(0, x.size, 4 * 4096):
        of_slice = np.float64(0)
        for chunk in range(begin, min(begin + 4 * 4096, x.size), 4096):
            squares = np.square(x[chunk:min(chunk + 4096, x.size)])
            s = [ordered_sum(squares[i::8]) for i in range(8)]
            of_slice += ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
        total += of_slice
    return np.sqrt(total)


def weighted_sum(weights, deltas):
    total = np.zeros(deltas[0].size)
    for weight, delta in zip(weights, deltas):
        total += weight * delta
    return total


def clipping(weights, deltas, factor):
    """What each delta is multiplied by, so that none is longer than so many times the median."""
    lengths = [norm(delta) for delta in deltas]
    counted = sorted(each for weight, each in zip(weights, lengths) if weight > 0 and each > 0)
    if not counted:
        return [np.float64(1)] * len(deltas)
    longest = factor * counted[(len(counted) - 1) // 2]
    return [longest / each if each > longest else np.float64(1) for each in lengths]


def trimmed_mean(weights, deltas, trim):
    """Value by value without the `trim` first and last, sorted, equal ones by worker."""
    values = np.stack(deltas)
    places = np.argsort(np.argsort(values, axis=0, kind="stable"), axis=0, kind="stable")
    kept = (places >= trim) & (places < len(deltas) - trim)
    total = np.zeros(values.shape[1])
    weight = np.zeros(values.shape[1])
    for each, row, keep in zip(weights, values, kept):
        total += np.where(keep, each * row, 0.0)
        weight += np.where(keep, each, 0.0)
    return total / weight


def weights_by_direction(weights, deltas, scales):
    """Those with which the sum has the mean direction, and the mean length."""
    lengths = [norm(delta) for delta in deltas]
    length = np.float64(0)
    for weight, each, scale in zip(weights, lengths, scales):
        length += weight * (scale * each)
    turned = [weight / each if each > 0 else np.float64(0)
              for weight, each in zip(weights, lengths)]
    direction = norm(weighted_sum(turned, deltas))
    scale = length / direction if direction > 0 else np.float64(0)
    return [weight * scale for weight in turned]


class Merger:
    """The coordinator's state and its outer optimizer."""

    def __init__(self, initial, fragments, codec_up, codec_down, outer, mutation):
        self.theta = initial.copy()
        self.momentum = np.zeros_like(initial)  # ADAM's first moment.
        self.second = np.zeros_like(initial)
        self.rounds = [0] * len(fragments)
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
        weights = [count / sum(tokens) for count in tokens]
        deltas = [np.asarray(self.codec_up.decode(contributions[worker][0], self.published[cut]),
                             dtype=np.float64) for worker in workers]
        g = self._combine(weights, deltas)
        self.rounds[fragment] += 1
        if self.outer["optimizer"] == "ADAM":
            step = self._adam(cut, self.rounds[fragment], g)
        else:
            step = self._nesterov(cut, g)
        self.theta[cut] = (self.theta[cut].astype(np.float64) -
                           self.outer["learning_rate"] * step).astype(np.float32)
        answer, _ = self.codec_down.encode(self.published[cut], self.theta[cut], None)
        self.published[cut] = self.codec_down.apply(answer, self.published[cut])
        return answer

    def _combine(self, weights, deltas):
        scales = [np.float64(1)] * len(deltas)
        if self.outer["clip_factor"] > 0 and len(deltas) > 1 and self.mutation != "unclipped":
            scales = clipping(weights, deltas, self.outer["clip_factor"])
        merge = self.outer["merge"]
        weighty = [weight > 0 for weight in weights]
        trim = min(self.outer["trim"], (sum(weighty) - 1) // 2)
        if merge == "TRIMMED_MEAN" and sum(weighty) >= 5 and trim > 0:
            return trimmed_mean([weight for weight in weights if weight > 0],
                                [scale * delta for scale, delta, counts
                                 in zip(scales, deltas, weighty) if counts],
                                0 if self.mutation == "untrimmed" else trim)
        if merge == "NORM_AND_DIRECTION" and self.mutation != "mean-merge":
            return weighted_sum(weights_by_direction(weights, deltas, scales), deltas)
        return weighted_sum([weight * scale for weight, scale in zip(weights, scales)], deltas)

    def _adam(self, cut, round_, g):
        def moment(state, beta, now):
            state[cut] = (beta * state[cut].astype(np.float64) + (1 - beta) * now).astype(
                np.float32)
            corrected = 1 - beta ** (1 if self.mutation == "uncorrected-adam" else round_)
            return state[cut].astype(np.float64) / corrected

        mean = moment(self.momentum, self.outer["beta1"], g)
        square = moment(self.second, self.outer["beta2"], g * g)
        return mean / (np.sqrt(square) + self.outer["epsilon"])

    def _nesterov(self, cut, g):
        mu = self.outer["momentum"]
        b = (mu * self.momentum[cut].astype(np.float64) + g).astype(np.float32)
        self.momentum[cut] = b
        return g + mu * b.astype(np.float64)
