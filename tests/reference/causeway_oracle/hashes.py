"""A run's hashes, its plan and the order of its data, from docs/formats.md, docs/algorithm.md and
the comments of config.proto."""

import re

import xxhash

ALIGNMENT = 64
LEAF = 1 << 20


def xxh3(data):
    return xxhash.xxh3_64_intdigest(data)


def tree_hash(data):
    leaves = [xxh3(data[begin:begin + LEAF]) for begin in range(0, len(data), LEAF)]
    return xxh3(b"".join(leaf.to_bytes(8, "little") for leaf in leaves))


def _double(value):
    text = "%.15g" % value
    return text if float(text) == value else "%.17g" % value


def _quoted(text):
    named = {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t", ord('"'): '\\"',
             ord("'"): "\\'", ord("\\"): "\\\\"}
    return '"' + "".join(
        named.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}")
        for byte in text.encode()) + '"'


def config_text(message, indent=""):
    """Of a message that protoc's classes hold; fields that they do not know are left out."""
    text = ""
    for field, value in message.ListFields():
        for one in value if field.label == field.LABEL_REPEATED else [value]:
            if field.type == field.TYPE_MESSAGE:
                text += f"{indent}{field.name} {{\n{config_text(one, indent + '  ')}{indent}}}\n"
                continue
            if field.type == field.TYPE_ENUM:
                known = field.enum_type.values_by_number.get(one)
                one = known.name if known else one
            elif field.type == field.TYPE_STRING:
                one = _quoted(one)
            elif field.type == field.TYPE_BOOL:
                one = str(one).lower()
            elif field.type == field.TYPE_DOUBLE:
                one = _double(one)
            text += f"{indent}{field.name}: {one}\n"
    return text


def config_hash(config):
    return xxh3(config_text(config).encode())


def model_tensors(model):
    """[(name, shape)] of a model of Causeway's own."""
    width, mlp_width = model.width, model.mlp_width
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    rows = (model.vocabulary_size + 127) // 128 * 128
    gated = model.mlp == model.SWIGLU
    block = [
        ("input_layernorm.weight", [width], True),
        ("input_layernorm.bias", [width], model.layer_norm),
        ("self_attn.q_proj.weight", [queries, width], True),
        ("self_attn.k_proj.weight", [keys, width], True),
        ("self_attn.v_proj.weight", [keys, width], True),
        ("self_attn.q_proj.bias", [queries], model.qkv_bias),
        ("self_attn.k_proj.bias", [keys], model.qkv_bias),
        ("self_attn.v_proj.bias", [keys], model.qkv_bias),
        ("self_attn.q_norm.weight", [model.head_dim], model.qk_norm),
        ("self_attn.k_norm.weight", [model.head_dim], model.qk_norm),
        ("self_attn.o_proj.weight", [width, queries], True),
        ("self_attn.o_proj.bias", [width], model.output_bias),
        ("post_attention_layernorm.weight", [width], True),
        ("post_attention_layernorm.bias", [width], model.layer_norm),
        ("mlp.gate_proj.weight", [mlp_width, width], gated),
        ("mlp.up_proj.weight", [mlp_width, width], True),
        ("mlp.gate_proj.bias", [mlp_width], gated and model.mlp_bias),
        ("mlp.up_proj.bias", [mlp_width], model.mlp_bias),
        ("mlp.down_proj.weight", [width, mlp_width], True),
        ("mlp.down_proj.bias", [width], model.mlp_bias),
    ]
    tensors = [("model.embed_tokens.weight", [rows, width], True),
               ("model.embed_positions.weight", [model.learned_positions, width],
                model.learned_positions > 0)]
    tensors += [(f"model.layers.{layer}.{name}", shape, there)
                for layer in range(model.layers) for name, shape, there in block]
    tensors += [("model.norm.weight", [width], True),
                ("model.norm.bias", [width], model.layer_norm),
                ("lm_head.weight", [rows, width], model.untied_head)]
    return [(name, shape) for name, shape, there in tensors if there]


def _block_number(name):
    numbers = [part for part in re.split("[./]", name) if re.fullmatch("[0-9]{1,9}", part)]
    return int(numbers[0]) if numbers else -1


class Plan:
    """Where tensors and fragments lie: `tensors` [(name, shape, offset)], `ranges` [slice]."""

    def __init__(self, config):
        table = (model_tensors(config.model) if config.HasField("model") else
                 [(tensor.name, list(tensor.shape)) for tensor in config.tensors.tensor])
        count, sync = config.sync.fragments, config.sync
        numbers = sorted({_block_number(name) for name, _ in table} - {-1})
        whole = count == 1 or sync.pattern == sync.BALANCED

        def fragment_of(name):
            number = _block_number(name)
            if whole or number < 0:
                return 0 if whole else count
            block = numbers.index(number)
            if sync.pattern == sync.STRIDED:
                return block % count
            runs = [len(numbers) // count + (i < len(numbers) % count) for i in range(count)]
            return max(i for i in range(count) if block >= sum(runs[:i]))

        self.tensors, self.ranges, end = [], [], 0
        for fragment in range(1 if whole else count + 1):
            begin = end
            for name, shape in table:
                if fragment_of(name) == fragment:
                    self.tensors.append((name, shape, end))
                    end += -(-self.values(shape) // ALIGNMENT) * ALIGNMENT
            self.ranges.append(slice(begin, end))
        self.size = end
        if whole and count > 1:
            cuts = [0]
            for k in range(1, count):
                cuts.append(self._cut(k * end // count, cuts[-1]))
            self.ranges = [slice(*pair) for pair in zip(cuts, cuts[1:] + [end])]

    @staticmethod
    def values(shape):
        product = 1
        for dimension in shape:
            product *= dimension
        return product

    def _cut(self, target, low):
        starts = [offset for _, _, offset in self.tensors]
        before = max(start for start in starts if start <= target)
        places = [before] + [start for start in starts if start > max(target, low)][:1]
        shape = next(shape for _, shape, offset in self.tensors if offset == before)
        if len(shape) > 1 and self.values(shape[1:]) > 1 and \
                target < before + self.values(shape):
            columns = self.values(shape[1:])
            rows = [before + row * columns for row in range(1, shape[0])
                    if row * columns % ALIGNMENT == 0]
            places += [row for row in rows if row <= target][-1:]
            places += [row for row in rows if row > target][:1]
        allowed = sorted(place for place in places if low < place < self.size)
        return min(allowed, key=lambda place: abs(place - target))

    def text(self):
        lines = []
        for name, shape, offset in self.tensors:
            shown = shape if len(shape) > 2 else (list(shape) + [1, 1])[:2]
            lines.append(f"{name} {'x'.join(map(str, shown))} @{offset}\n")
        lines += [f"fragment {cut.start} {cut.stop}\n" for cut in self.ranges]
        return "".join(lines)

    def hash(self):
        return xxh3(self.text().encode())


MASK = (1 << 64) - 1


def _mix(x):
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def random_bits(seed, stream, counter):
    golden = 0x9E3779B97F4A7C15
    key = _mix(seed + golden & MASK) ^ _mix(stream * 0xD1342543DE82EF95 & MASK)
    turned = (key << 32 | key >> 32) & MASK
    return _mix(_mix(key + counter * golden & MASK) + turned & MASK)


def window_of(seed, windows, parts, part, draw):
    """The window that a draw of a part takes."""
    epoch, value = divmod(draw * parts + part, windows)
    half = ((windows - 1).bit_length() + 1) // 2
    while windows > 1:
        left, right = value >> half, value & (1 << half) - 1
        for turn in range(4):
            mixed = random_bits(seed, epoch, right << 3 | turn) & (1 << half) - 1
            left, right = right, left ^ mixed
        value = left << half | right
        if value < windows:
            break
    return value


def data_fingerprint(tokens):
    length = min(16, len(tokens))
    begins = len(tokens) - length + 1
    sampled = b"".join(token.to_bytes(4, "little") for i in range(256)
                       for token in tokens[i * begins // 256:][:length])
    return max(1, xxh3(sampled) ^ len(tokens))
