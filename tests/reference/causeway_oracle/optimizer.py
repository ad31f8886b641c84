"""The inner optimizers: AdamW, or Muon on the blocks' matrices and AdamW on the rest, under a
global gradient norm, with a warm-up and a cosine.

Weights are fp32 between steps; a step computes in double and rounds each weight once."""

import math

import numpy as np

from causeway_oracle import layout


def learning_rate_factor(step, steps, warmup_steps, final_fraction, constant_fraction=0.0):
    if step < warmup_steps:
        return step / warmup_steps
    begin = max(warmup_steps, constant_fraction * steps)
    progress = min(max((step - begin) / max(1.0, steps - begin), 0.0), 1.0)
    if constant_fraction > 0:
        return 1.0 - (1.0 - final_fraction) * progress
    return final_fraction + (1.0 - final_fraction) * 0.5 * (1.0 + math.cos(math.pi * progress))


def orthogonalize(x):
    """Moves all singular values to about 1: five steps of a quintic Newton-Schulz iteration."""
    # The authors' own code keeps a zero matrix from dividing by zero this way.
    x = x / (np.linalg.norm(x) + 1e-7)
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if tall else x


class InnerOptimizer:
    def __init__(self, train, tensors, size):
        self.train = train
        self.muon = [tensor for tensor in tensors
                     if train["optimizer"] == "MUON" and tensor["cols"] > 1
                     and tensor["name"].startswith("model.layers.")]
        self.decay = np.zeros(size)
        for tensor in tensors:
            if tensor["cols"] > 1:
                self.decay[layout.values_of(tensor)] = train["weight_decay"]
        self.m = np.zeros(size)
        self.v = np.zeros(size)
        self.momentum = {tensor["name"]: np.zeros(layout.shape_of(tensor))
                         for tensor in self.muon}

    def update(self, step, weights, gradient):
        """fp32 weights and their float64 gradient -> new fp32 weights."""
        train = self.train
        clip = train["clip_norm"]
        if clip > 0:
            norm = math.sqrt(float(np.dot(gradient, gradient)))
            if norm > clip:
                gradient = gradient * (clip / norm)
        factor = learning_rate_factor(step, train["steps"], train["warmup_steps"],
                                      train["final_learning_rate_fraction"], train.get("constant_fraction", 0.0))
        wide = weights.astype(np.float64)
        result = self._adamw(step, train["learning_rate"] * factor, wide, gradient)
        rate = train["muon_learning_rate"] * factor
        for tensor in self.muon:
            values, shape = layout.values_of(tensor), layout.shape_of(tensor)
            new = self._muon(tensor["name"], rate, wide[values].reshape(shape),
                             gradient[values].reshape(shape))
            result[values] = new.ravel()
        return result.astype(np.float32)

    def _adamw(self, step, rate, weights, gradient):
        beta1, beta2 = self.train["beta1"], self.train["beta2"]
        self.m = beta1 * self.m + (1.0 - beta1) * gradient
        self.v = beta2 * self.v + (1.0 - beta2) * gradient * gradient
        m_hat = self.m / (1.0 - beta1**step)
        v_hat = self.v / (1.0 - beta2**step)
        decayed = weights - rate * self.decay * weights
        return decayed - rate * m_hat / (np.sqrt(v_hat) + self.train["epsilon"])

    def _muon(self, name, rate, weights, gradient):
        mu = self.train["muon_momentum"]
        moment = self.momentum[name] = mu * self.momentum[name] + gradient
        direction = orthogonalize(gradient + mu * moment)
        stretch = math.sqrt(max(1.0, weights.shape[0] / weights.shape[1]))
        return weights - rate * self.train["weight_decay"] * weights - rate * stretch * direction
