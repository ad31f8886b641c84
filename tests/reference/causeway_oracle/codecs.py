"""The codecs, from docs/codecs.md: what bytes a difference becomes, and back.

Every codec has

  encode(base, target, residual, decay=1)
                         -> (bytes, the new residual); residual None: no error feedback
  decode(encoded, base)  -> the difference, float64
  apply(encoded, base)   -> the fp32 target, as nearly as the codec carries it

All arithmetic is fp32 unless a conversion says otherwise."""

import numpy as np

CHUNK = 4096
BLOCK = 64
SMALLEST_SCALE = 0x0D80  # 2^-100 as bf16.


def bf16_to_float(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def bf16_nearest(values):
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_up(magnitudes):
    bits = np.ascontiguousarray(magnitudes, np.float32).view(np.uint32)
    return ((bits + 0xFFFF) >> 16).astype(np.uint16)


def without_tiny(scales):
    return np.where(scales < SMALLEST_SCALE, np.uint16(0), scales)


def sum_of_eight(rows):
    """Of the last two axes, (n, 8): 8 sums, of every eighth value, and theirs in a fixed order."""
    # One after the other, as a plain sum is not.
    s = np.moveaxis(np.cumsum(rows, axis=-2)[..., -1, :], -1, 0)
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))


class DifferenceCodec:
    """What carries the fp32 difference. Derived classes turn it into bytes and back."""
    scale_is_mean = False

    def encode(self, base, target, residual, decay=1):
        difference = base - target
        if residual is not None:
            difference = difference + np.float32(decay) * residual
        encoded = self.pack(difference)
        return encoded, difference - self.unpack(encoded, difference.size)

    def decode(self, encoded, base):
        return self.unpack(encoded, base.size).astype(np.float64)

    def apply(self, encoded, base):
        return base - self.unpack(encoded, base.size)


class Bf16(DifferenceCodec):
    def pack(self, difference):
        return bf16_nearest(difference).astype("<u2").tobytes()

    def unpack(self, encoded, size):
        return bf16_to_float(np.frombuffer(encoded, "<u2", size))


class BlockCodec(DifferenceCodec):
    """Chunk after chunk: the blocks' scales as bf16, then the codes, low bits first."""

    bits = 4

    def pack(self, difference):
        parts = []
        for begin in range(0, difference.size, CHUNK):
            chunk = difference[begin:begin + CHUNK]
            blocks = -(-chunk.size // BLOCK)
            counts = np.minimum(BLOCK, chunk.size - BLOCK * np.arange(blocks))
            padded = np.zeros(blocks * BLOCK, np.float32)
            padded[:chunk.size] = chunk
            padded = padded.reshape(blocks, BLOCK)
            scales = self.scales(padded, counts)
            # A block without a scale has no codes; 1 keeps it from dividing by zero.
            some = (scales != 0)[:, None]
            wide = np.where(some, bf16_to_float(scales)[:, None], np.float32(1))
            codes = np.where(some, self.codes(padded, wide), 0).astype(np.uint8)
            parts += [scales.astype("<u2").tobytes(), self._pack_codes(codes.ravel()[:chunk.size])]
        return b"".join(parts)

    def unpack(self, encoded, size):
        values = np.empty(size, np.float32)
        position = 0
        for begin in range(0, size, CHUNK):
            count = min(CHUNK, size - begin)
            blocks = -(-count // BLOCK)
            code_bytes = -(-count * self.bits // 8)
            scales = bf16_to_float(np.frombuffer(encoded, "<u2", blocks, position))
            position += 2 * blocks
            packed = np.frombuffer(encoded, np.uint8, code_bytes, position)
            position += code_bytes
            codes = np.zeros(blocks * BLOCK, np.uint8)
            codes[:count] = self._unpack_codes(packed)[:count]
            decoded = self.values(codes.reshape(blocks, BLOCK), scales[:, None])
            values[begin:begin + count] = decoded.ravel()[:count]
        if position != len(encoded):
            raise ValueError(f"{len(encoded)} bytes for {size} values; expected {position}")
        return values

    def _pack_codes(self, codes):
        per_byte = 8 // self.bits
        padded = np.zeros(-(-codes.size // per_byte) * per_byte, np.uint8)
        padded[:codes.size] = codes
        packed = np.zeros(padded.size // per_byte, np.uint8)
        for i in range(per_byte):
            packed |= padded[i::per_byte] << np.uint8(i * self.bits)
        return packed.tobytes()

    def _unpack_codes(self, packed):
        per_byte = 8 // self.bits
        codes = np.empty(packed.size * per_byte, np.uint8)
        for i in range(per_byte):
            codes[i::per_byte] = (packed >> np.uint8(i * self.bits)) & ((1 << self.bits) - 1)
        return codes

    def scales(self, blocks, counts):
        return without_tiny(bf16_up(np.abs(blocks).max(axis=1)))


class Integers(BlockCodec):
    def __init__(self, bits, inverse_limit):
        self.bits = bits
        self.limit = np.float32(2 ** (bits - 1) - 1)
        self.inverse_limit = np.float32(float.fromhex(inverse_limit))

    def codes(self, blocks, scales):
        inverse = self.limit / scales
        return np.rint(blocks * inverse).astype(np.int32) & ((1 << self.bits) - 1)

    def values(self, codes, scales):
        half = 1 << (self.bits - 1)
        signed = (codes.astype(np.int32) ^ half) - half
        return signed.astype(np.float32) * (scales * self.inverse_limit)


class Levels(BlockCodec):
    """Sign and one of eight magnitudes."""

    def codes(self, blocks, scales):
        level = self.level(np.abs(blocks), scales)
        return np.where((blocks < 0) & (level > 0), level + 8, level)

    def values(self, codes, scales):
        magnitude = self.magnitudes[codes & 7] * self.unit(scales)
        return np.where(codes & 8, -magnitude, magnitude)


class E3M0(Levels):
    magnitudes = np.array([0] + [2.0**k for k in range(-6, 1)], np.float32)

    def level(self, magnitude, scales):
        u = scales * np.float32(2.0**-7)
        return ((magnitude > u).astype(np.int32) + (magnitude >= 3 * u) + (magnitude > 6 * u)
                + (magnitude >= 12 * u) + (magnitude > 24 * u) + (magnitude >= 48 * u)
                + (magnitude > 96 * u))

    def unit(self, scales):
        return scales


class E2M1(Levels):
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)

    def level(self, magnitude, scales):
        a = magnitude * (np.float32(6) / scales)
        return ((a > 0.25).astype(np.int32) + (a >= 0.75) + (a > 1.25) + (a >= 1.75) + (a > 2.5)
                + (a >= 3.5) + (a > 5))

    def unit(self, scales):
        return scales * np.float32(float.fromhex("0x1.555554p-3"))


class LloydMax2(BlockCodec):
    bits = 2
    scale_is_mean = True

    def scales(self, blocks, counts):
        squares = (blocks.astype(np.float64) ** 2).reshape(-1, BLOCK // 8, 8)
        total = sum_of_eight(squares)
        return without_tiny(bf16_nearest(np.sqrt(total / counts).astype(np.float32)))

    def codes(self, blocks, scales):
        large = np.abs(blocks) > np.float32(0.9816) * scales
        return large.astype(np.int32) + 2 * (blocks < 0)

    def values(self, codes, scales):
        magnitude = np.where(codes & 1, np.float32(1.510) * scales, np.float32(0.4528) * scales)
        return np.where(codes & 2, -magnitude, magnitude)


class Signs(BlockCodec):
    bits = 1
    scale_is_mean = True

    def scales(self, blocks, counts):
        magnitudes = np.abs(blocks.astype(np.float64)).reshape(-1, BLOCK // 8, 8)
        return without_tiny(bf16_nearest((sum_of_eight(magnitudes) / counts).astype(np.float32)))

    def codes(self, blocks, scales):
        return blocks < 0

    def values(self, codes, scales):
        return np.where(codes, -scales, scales)


class Fp32:
    """The distance from base to target in units of the last place."""
    scale_is_mean = False

    @staticmethod
    def _ordered(bits):
        return np.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)

    def encode(self, base, target, residual, decay=1):
        if residual is not None:
            target = target - np.float32(decay) * residual
        here = self._ordered(base.view(np.int32)).astype(np.int64)
        there = self._ordered(np.ascontiguousarray(target).view(np.int32)).astype(np.int64)
        encoded = ((there - here) & 0xFFFFFFFF).astype("<u4").tobytes()
        return encoded, np.zeros_like(base)

    def apply(self, encoded, base):
        distance = np.frombuffer(encoded, "<u4", base.size).astype(np.int64)
        ordered = (self._ordered(base.view(np.int32)) + distance) & 0xFFFFFFFF
        bits = self._ordered(ordered.astype(np.uint32).view(np.int32))
        return bits.astype(np.int32).view(np.float32)

    def decode(self, encoded, base):
        return base.astype(np.float64) - self.apply(encoded, base).astype(np.float64)


CODECS = {
    "FP32": Fp32(),
    "BF16": Bf16(),
    "INT8": Integers(8, "0x1.020408p-7"),
    "INT4": Integers(4, "0x1.249248p-3"),
    "E3M0": E3M0(),
    "E2M1": E2M1(),
    "LM2": LloydMax2(),
    "SIGN1": Signs(),
}
