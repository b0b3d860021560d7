"""The seed expansion of :mod:`noisewise.federated.fss.hashing` in AES instructions.

numba has no AES, but it lets a function be written in LLVM's own language; these three are a
few vector instructions each, with the round keys of the public cipher keys as constants.
Arrays hold one 128-bit block in each row; the lowest bit of a block is its control bit.
"""

from __future__ import annotations

from typing import Any

import numba
import numba.core.cgutils
import numba.extending
from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

from noisewise.federated.fss.hashing import CIPHER_KEYS, CODE, LEFT, RIGHT, VALUE

# Parts of numba are typed in some versions and not in others; here none of them is.
_intrinsic: Any = numba.extending.intrinsic
_types: Any = numba.types
_cgutils: Any = numba.core.cgutils

__all__ = ["encrypt", "expand_children", "hash_block", "hash_value", "multiply"]

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_V = ir.VectorType(_I64, 2)
_ALL = (1 << 64) - 1


def round_keys(key: bytes) -> list[tuple[int, int]]:
    """Return the eleven round keys of AES-128 (FIPS 197, Section 5.2), as pairs of words."""
    box = _substitution_box()
    words = [key[4 * i : 4 * i + 4] for i in range(4)]
    constant = 1
    for i in range(4, 44):
        word = words[i - 1]
        if i % 4 == 0:
            word = bytes(box[b] for b in word[1:] + word[:1])
            word = bytes([word[0] ^ constant]) + word[1:]
            constant = _double(constant)
        words.append(bytes(a ^ b for a, b in zip(words[i - 4], word, strict=True)))
    flat = b"".join(words)
    return [
        (
            int.from_bytes(flat[16 * r : 16 * r + 8], "little"),
            int.from_bytes(flat[16 * r + 8 : 16 * r + 16], "little"),
        )
        for r in range(11)
    ]


def _double(value: int) -> int:
    return ((value << 1) ^ (0x11B if value & 0x80 else 0)) & 0xFF


def _substitution_box() -> list[int]:
    """Inverse in GF(2^8) and an affine map, from the powers of the generator 3."""
    powers = [1]
    for _ in range(254):
        powers.append(powers[-1] ^ _double(powers[-1]))
    box = [0x63] * 256
    for exponent, value in enumerate(powers):
        inverse = powers[-exponent % 255]
        turned = [(inverse << k | inverse >> (8 - k)) & 0xFF for k in range(5)]
        mixed = 0x63
        for part in turned:
            mixed ^= part
        box[value] = mixed
    return box


_ROUND_KEYS = [round_keys(key) for key in CIPHER_KEYS]


def _constant(low: int, high: int) -> Any:
    return ir.Constant(_V, [low, high])


def _vector(builder: Any, low: Any, high: Any) -> Any:
    vector = ir.Constant(_V, ir.Undefined)
    vector = builder.insert_element(vector, low, ir.Constant(_I32, 0))
    return builder.insert_element(vector, high, ir.Constant(_I32, 1))


def _shuffle(builder: Any, vector: Any, first: int, second: int) -> Any:
    mask = ir.Constant(ir.VectorType(_I32, 2), [first, second])
    return builder.shuffle_vector(vector, vector, mask)


def _aes(builder: Any, which: int, block: Any) -> Any:
    kind = ir.FunctionType(_V, [_V, _V])
    middle = _cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.aesni.aesenc")
    final = _cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.aesni.aesenclast")
    keys = [_constant(*pair) for pair in _ROUND_KEYS[which]]
    state = builder.xor(block, keys[0])
    for key in keys[1:10]:
        state = builder.call(middle, [state, key])
    return builder.call(final, [state, keys[10]])


def _row(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Return a pointer to a row of a contiguous (rows, 2) array of words."""
    data = context.make_array(kind)(context, builder, array).data
    first = builder.gep(data, [builder.mul(index, ir.Constant(_I64, 2))])
    return builder.bitcast(first, _V.as_pointer())


def _load(builder: Any, pointer: Any) -> Any:
    return builder.load(pointer, align=8)


def _store(builder: Any, value: Any, pointer: Any) -> None:
    builder.store(value, pointer, align=8)


def _control_mask(builder: Any, block: Any) -> Any:
    """All ones where the control bit is set, in both words."""
    bit = builder.and_(_shuffle(builder, block, 0, 0), _constant(1, 1))
    return builder.sub(_constant(0, 0), bit)


def _mixed(builder: Any, block: Any) -> Any:
    """Sigma of the seed in a block: (a xor b, a), control bit cleared."""
    seed = builder.and_(block, _constant(_ALL ^ 1, _ALL))
    only_first = builder.and_(seed, _constant(_ALL, 0))
    return builder.xor(only_first, _shuffle(builder, seed, 1, 0))


def _hash(builder: Any, which: int, mixed: Any) -> Any:
    return builder.xor(_aes(builder, which, mixed), mixed)


def _encrypt(typing: Any, array: Any, index: Any) -> Any:
    """Encrypt a row in place: what the processor can do at most."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row = _row(context, builder, signature.args[0], arguments[0], arguments[1])
        _store(builder, _aes(builder, LEFT, _load(builder, row)), row)
        return context.get_dummy_value()

    return _types.void(array, _types.int64), generate


def _expand_children(
    typing: Any, source: Any, j: Any, target: Any, left: Any, right: Any, high: Any
) -> Any:
    """Write both corrected children of row j to rows 2j and 2j + 1 of `target`.

    `left`, `right` and `high` are the words of the corrections: the first words with the control
    bits of either side, and the second word, which is the same for both.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        origin, index, goal, first, second, upper = arguments
        block = _load(builder, _row(context, builder, signature.args[0], origin, index))
        mask, mixed = _control_mask(builder, block), _mixed(builder, block)
        double = builder.shl(index, ir.Constant(_I64, 1))
        for which, word, offset in ((LEFT, first, 0), (RIGHT, second, 1)):
            correction = builder.and_(_vector(builder, word, upper), mask)
            child = builder.xor(_hash(builder, which, mixed), correction)
            place = builder.add(double, ir.Constant(_I64, offset))
            _store(builder, child, _row(context, builder, signature.args[2], goal, place))
        return context.get_dummy_value()

    word = _types.uint64
    return _types.void(source, _types.int64, target, word, word, word), generate


def _hash_value(
    typing: Any, source: Any, j: Any, total: Any, place: Any, low: Any, high: Any
) -> Any:
    """Add the corrected value of row j of `source` to row `place` of `total`, word by word."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        origin, index, sums, where, first, second = arguments
        block = _load(builder, _row(context, builder, signature.args[0], origin, index))
        correction = builder.and_(_vector(builder, first, second), _control_mask(builder, block))
        value = builder.add(_hash(builder, VALUE, _mixed(builder, block)), correction)
        row = _row(context, builder, signature.args[2], sums, where)
        _store(builder, builder.add(_load(builder, row), value), row)
        return context.get_dummy_value()

    word = _types.uint64
    return _types.void(source, _types.int64, total, _types.int64, word, word), generate


def _hash_block(which: int) -> Any:
    def hash_block(typing: Any, low: Any, high: Any) -> Any:
        """Hash the seed in a block given as two words."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            block = _vector(builder, arguments[0], arguments[1])
            hashed = _hash(builder, which, _mixed(builder, block))
            words = [builder.extract_element(hashed, ir.Constant(_I32, k)) for k in (0, 1)]
            return context.make_tuple(builder, signature.return_type, words)

        return _types.UniTuple(_types.uint64, 2)(_types.uint64, _types.uint64), generate

    return _intrinsic(hash_block)


def _multiply(typing: Any, a: Any, b: Any) -> Any:
    """Multiply two numbers below 2^61; congruent modulo 2^61 - 1 and below 2^62."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(word, wide) for word in arguments))
        low = builder.and_(builder.trunc(product, _I64), ir.Constant(_I64, (1 << 61) - 1))
        high = builder.trunc(builder.lshr(product, ir.Constant(wide, 61)), _I64)
        return builder.add(low, high)

    word = _types.uint64
    return word(word, word), generate


encrypt: Any = _intrinsic(_encrypt)
multiply: Any = _intrinsic(_multiply)
expand_children: Any = _intrinsic(_expand_children)
hash_value: Any = _intrinsic(_hash_value)

#: One function for each cipher key, from two words to two words.
hash_block = [_hash_block(which) for which in (LEFT, RIGHT, VALUE, CODE)]
