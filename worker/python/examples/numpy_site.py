#!/usr/bin/env python3
"""A site without PyTorch: NumPy arrays, gradients by hand.

    numpy_site.py --coordinator=hub:7070 --id=paris --data=TEXT

A network with one hidden layer guesses a byte from the eight before it. The run is one of any
model, `causeway-coordinator serve --initial=first-site`: the first site brings names, shapes and initial
values. JAX trains the same way: copy its arrays to NumPy before site.step(), and back after it.
"""

from __future__ import annotations

import argparse
import logging
import pathlib
from typing import Dict, Tuple

import numpy as np

import causeway

CONTEXT, EMBEDDING, HIDDEN, BYTES = 8, 16, 128, 256
Arrays = Dict[str, np.ndarray]


def initial_arrays(seed: int) -> Arrays:
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    return {"embedding": normal(BYTES, EMBEDDING),
            "hidden.weight": normal(CONTEXT * EMBEDDING, HIDDEN),
            "hidden.bias": np.zeros(HIDDEN, np.float32), "head.weight": normal(HIDDEN, BYTES),
            "head.bias": np.zeros(BYTES, np.float32)}


def loss_and_gradients(arrays: Arrays, contexts: np.ndarray,
                       targets: np.ndarray) -> Tuple[float, Arrays]:
    """Mean cross entropy of bytes [batch] after contexts [batch, CONTEXT]."""
    rows = np.arange(len(targets))
    inputs = arrays["embedding"][contexts].reshape(len(targets), -1)
    hidden = np.tanh(inputs @ arrays["hidden.weight"] + arrays["hidden.bias"])
    logits = hidden @ arrays["head.weight"] + arrays["head.bias"]
    logits -= logits.max(axis=1, keepdims=True)
    probabilities = np.exp(logits)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    loss = -np.log(probabilities[rows, targets]).mean()
    probabilities[rows, targets] -= 1
    of_logits = probabilities / len(targets)
    of_hidden = of_logits @ arrays["head.weight"].T * (1 - hidden * hidden)
    of_inputs = (of_hidden @ arrays["hidden.weight"].T).reshape(*contexts.shape, EMBEDDING)
    of_embedding = np.zeros_like(arrays["embedding"])
    np.add.at(of_embedding, contexts, of_inputs)
    return float(loss), {"embedding": of_embedding, "hidden.weight": inputs.T @ of_hidden,
                         "hidden.bias": of_hidden.sum(axis=0), "head.weight": hidden.T @ of_logits,
                         "head.bias": of_logits.sum(axis=0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coordinator", required=True, metavar="HOST:PORT")
    parser.add_argument("--id", required=True, help="this site's name, unique in the run")
    parser.add_argument("--data", type=pathlib.Path, required=True,
                        help="a text; its bytes are learned")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--learning_rate", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=1, help="of the order of the data")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    text = np.frombuffer(arguments.data.read_bytes(), dtype=np.uint8)
    random = np.random.default_rng(arguments.seed)
    arrays = initial_arrays(seed=1)
    with causeway.Site(arguments.coordinator, arrays, id=arguments.id) as site:
        while not site.should_stop:
            begins = random.integers(len(text) - CONTEXT, size=arguments.batch)
            contexts = text[begins[:, None] + np.arange(CONTEXT)]
            loss, gradients = loss_and_gradients(arrays, contexts, text[begins + CONTEXT])
            for name, gradient in gradients.items():
                arrays[name] -= arguments.learning_rate * gradient
            if site.current_step % 50 == 0:
                print(f"step {site.current_step}: loss {loss:.4f}", flush=True)
            site.report(loss=loss)
            site.step(tokens=arguments.batch)
    with site.published():
        begins = np.arange(0, len(text) - CONTEXT, max(1, len(text) // 2000))
        contexts = text[begins[:, None] + np.arange(CONTEXT)]
        loss, _ = loss_and_gradients(arrays, contexts, text[begins + CONTEXT])
    print(f"the run's model has the loss {loss:.4f}")


if __name__ == "__main__":
    main()
