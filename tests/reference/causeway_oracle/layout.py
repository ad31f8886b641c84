"""Where tensors lie in the arena, as a trace has it: foreign_worker_test holds plans against hashes.Plan."""

import numpy as np

ALIGNMENT = 64


def values_of(tensor):
    return slice(tensor["offset"], tensor["offset"] + tensor["rows"] * tensor["cols"])


def shape_of(tensor):
    return (tensor["rows"], tensor["cols"]) if tensor["cols"] > 1 else (tensor["rows"],)


def align(value):
    return (value + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def gaps(tensors):
    """Returns (places between tensors [(offset, values)], the places of their block's values that
    these mirror)."""
    places, mirrored = [], []
    for offset, values in tensors:
        end = offset + values
        first = end // ALIGNMENT * ALIGNMENT
        for place in range(end, align(end)):
            places.append(place)
            mirrored.append(first + (place - end) % (end - first))
    return np.array(places, dtype=int), np.array(mirrored, dtype=int)
