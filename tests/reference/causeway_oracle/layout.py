"""Where tensors and fragments lie in the arena: taken from the trace, but not on trust."""

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


def tensor_names(model):
    """[(name, block)] in model order; block -1 outside the blocks."""
    names = [("model.embed_tokens.weight", -1)]
    for block in range(model["layers"]):
        parts = ["input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]
        if model["qk_norm"]:
            parts += ["self_attn.q_norm", "self_attn.k_norm"]
        parts += ["self_attn.o_proj", "post_attention_layernorm"]
        if model["mlp"] == "SWIGLU":
            parts += ["mlp.gate_proj"]
        parts += ["mlp.up_proj", "mlp.down_proj"]
        names += [(f"model.layers.{block}.{part}.weight", block) for part in parts]
    names.append(("model.norm.weight", -1))
    if model["untied_head"]:
        names.append(("lm_head.weight", -1))
    return names


def check(trace):
    """Raises ValueError unless the trace's arena and fragments are what its configuration asks
    for: tensors in order of fragment, aligned; strided and sequential fragments block by block;
    balanced ones cut between tensors or rows, none more than half as large again as the mean."""
    names = tensor_names(trace.model)
    count, pattern = trace.sync["fragments"], trace.sync["pattern"]
    whole = count == 1 or pattern == "BALANCED"
    layers = trace.model["layers"]

    def fragment_of(block):
        if whole:
            return 0
        if block < 0:
            return count
        if pattern == "STRIDED":
            return block % count
        # Runs of consecutive blocks, the first ones longer.
        runs = [layers // count + (1 if i < layers % count else 0) for i in range(count)]
        starts = [sum(runs[:i]) for i in range(count)]
        return max(i for i in range(count) if block >= starts[i])

    expected = sorted(names, key=lambda entry: fragment_of(entry[1]))  # A stable sort.
    if [name for name, _ in expected] != [tensor["name"] for tensor in trace.tensors]:
        raise ValueError("the arena does not hold the model's tensors in order of fragment")
    end, ends = 0, {}
    for (_, block), tensor in zip(expected, trace.tensors):
        if tensor["offset"] != end:
            raise ValueError(f"{tensor['name']} should start at {end}, not {tensor['offset']}")
        end = align(values_of(tensor).stop)
        ends[fragment_of(block)] = end
    if end != trace.size:
        raise ValueError(f"the arena should have {end} values, not {trace.size}")

    cuts = [f.stop for f in trace.fragments]
    starts = [f.start for f in trace.fragments]
    if starts != [0] + cuts[:-1] or cuts[-1] != trace.size:
        raise ValueError("the fragments do not follow each other through the whole arena")
    if pattern == "BALANCED" and count > 1:
        rows = {0, trace.size}
        for tensor in trace.tensors:
            rows.update(range(tensor["offset"], values_of(tensor).stop, tensor["cols"]))
        if len(cuts) != count or any(cut % ALIGNMENT or cut not in rows for cut in cuts):
            raise ValueError("balanced fragments are not cut between tensors or rows")
        if max(cut - start for start, cut in zip(starts, cuts)) > 1.5 * trace.size / count:
            raise ValueError("balanced fragments are not of nearly equal size")
    elif cuts != [ends[fragment] for fragment in sorted(ends)]:
        raise ValueError("the fragments do not hold the blocks that the pattern gives them")
