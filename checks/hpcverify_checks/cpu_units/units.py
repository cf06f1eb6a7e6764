"""
What a core is asked to do: units of work with one answer, that another core can verify.

A unit makes bytes of data, and always the same of the same data. Another core undoes them,
or makes them again; where a cheap and independent proof exists, it also proves a sample.
Here are the units of Python, its standard library and `cryptography`; those that need
torch are in `vectors`.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import zlib
from array import array
from binascii import crc_hqx
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

from hpcverify_checks.cpu_units.proofs import is_power, is_quotient, is_root

BytesChange = Callable[[bytes], bytes]

DATA_BYTES = 2**16
DIGEST_BYTES = 8
MODULUS = 2**64
RESULT_ERRORS = (ValueError, ArithmeticError, EOFError, OSError, zlib.error)
"""What a library raises about data that are not what it made."""
AES_KEY_BYTES, AES_BLOCK_BYTES = 32, 16
COPY_SIZES = (1, 63, 1023, 2**12 + 1, 2**14 + 7, 2**17 - 3)
"""Bytes of the copies, which take turns: below and above the size from which the C library
copies with ``rep movsb`` (2 KiB on most CPUs that are fast at it)."""
BIG_DIVIDEND_SHARE = 0.7
SCALARS, PROVEN_SCALARS = 256, 4
MAX_EXPONENT = 127


@dataclass(frozen=True, slots=True)
class Unit:
    """
    Work with one right answer.

    Attributes:
        name: In the plural or as a mass noun, as in "4 results of AES".
        make: Makes the answer of the data.
        undo: Makes the data of the answer; without it, the answer is made again.
        proof: Whether a sample of the answer is right by another way.
        universal: Whether the answer is the same on all machines, so that digests ship.
        size: Bytes of the data.

    """

    name: str
    make: Callable[[bytes], bytes]
    undo: Callable[[bytes], bytes] | None = None
    proof: Callable[[bytes, bytes], bool] | None = None
    universal: bool = True
    size: int = DATA_BYTES

    def draw(self, seed: str) -> bytes:
        """Draw data; the same of the same *seed*, on every machine."""
        return hashlib.shake_128(f"{self.name} {seed}".encode()).digest(self.size)

    def answer(self, data: bytes) -> bytes:
        """Make the answer; empty where the library raises."""
        try:
            return self.make(data)
        except RESULT_ERRORS:
            return b""

    def accepts(self, data: bytes, made: bytes) -> bool:
        """Verify the answer *made* of *data*."""
        try:
            back = self.undo(made) == data if self.undo else self.make(data) == made
            return back and (self.proof is None or self.proof(data, made))
        except RESULT_ERRORS:
            return False


def compute_digest(made: bytes) -> str:
    """Compute a short digest of an answer."""
    return hashlib.blake2b(made, digest_size=DIGEST_BYTES).hexdigest()


def divide_integers(data: bytes) -> bytes:
    """Divide one long integer by another: quotient, remainder and divisor."""
    cut = int(len(data) * BIG_DIVIDEND_SHARE)
    dividend = int.from_bytes(data[:cut], "little")
    divisor = int.from_bytes(data[cut:], "little") | 1
    parts = (*divmod(dividend, divisor), divisor)
    # The last one only as large as it was, so that multiplying gives all of the data back.
    return b"".join(part.to_bytes(len(data), "little") for part in parts) + data[cut : cut + 1]


def multiply_integers(made: bytes) -> bytes:
    """Multiply what `divide_integers` divided: the data."""
    size = (len(made) - 1) // 3
    quotient, remainder, divisor = (
        int.from_bytes(made[i * size : (i + 1) * size], "little") for i in range(3)
    )
    cut = int(size * BIG_DIVIDEND_SHARE)
    dividend = quotient * divisor + remainder
    tail = divisor.to_bytes(size - cut, "little")
    return dividend.to_bytes(cut, "little") + made[-1:] + tail[1:]


def list_scalars(data: bytes) -> Iterator[tuple[float, int]]:
    """List pairs of a base from 1.0 to 3.5 in tenths and a small exponent."""
    for i in range(SCALARS):
        yield 1 + (data[2 * i] % 26) / 10, data[2 * i + 1] % MAX_EXPONENT + 1


def compute_scalars(data: bytes) -> bytes:
    """Compute with single doubles: powers, quotients, roots and what follows from them."""
    out = array("d")
    for base, exponent in list_scalars(data):
        power = math.pow(base, exponent)
        out.extend((power, base / exponent, math.sqrt(power), math.sin(power), math.log(power)))
        out.extend((math.exp(-base), math.atan2(base, exponent), math.tanh(base), math.cbrt(power)))
    return out.tobytes()


def prove_scalars(data: bytes, made: bytes) -> bool:
    """Prove some powers, quotients and roots of `compute_scalars` with integers and decimals."""
    out = array("d")
    out.frombytes(made)
    width = len(out) // SCALARS
    pairs = list(list_scalars(data))
    for i in (data[k] % SCALARS for k in range(PROVEN_SCALARS)):
        (base, exponent), (power, quotient, root) = pairs[i], out[i * width : i * width + 3]
        right = is_power(base, float(exponent), power) and is_quotient(base, exponent, quotient)
        if not (right and is_root(power, root)):
            return False
    return True


def hash_data(data: bytes) -> bytes:
    """Hash *data* with each hash that all builds of Python have."""
    names = ("md5", "sha1", "sha256", "sha512", "sha3_256", "blake2s", "blake2b")
    return b"".join(hashlib.new(name, data, usedforsecurity=False).digest() for name in names)


def compute_checksums(data: bytes) -> bytes:
    """Compute a CRC-32, an Adler-32 and a CRC-16 of *data*."""
    sums = (zlib.crc32(data), zlib.adler32(data), crc_hqx(data, 0))
    return b"".join(value.to_bytes(4, "little") for value in sums)


def make_compressible(compress: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Compress data that repeat themselves in part; random bytes alone would only be stored."""
    return lambda data: compress(_repeat(data))


def _repeat(data: bytes) -> bytes:
    words = data[: len(data) // 4]
    return data + words.hex().encode() + words


def restore(decompress: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Undo `make_compressible`: nothing if the repeated part is not the same."""

    def undo(made: bytes) -> bytes:
        whole = decompress(made)
        data = whole[: len(whole) * 4 // 7]
        return data if _repeat(data) == whole else b""

    return undo


def copy_pieces(data: bytes, *, to_end: bool) -> bytes:
    """Copy *data* with ``memmove``, piece by piece, the first piece to the end, or back."""
    source, target = ctypes.create_string_buffer(data, len(data)), bytearray(len(data))
    room = (ctypes.c_char * len(data)).from_buffer(target)
    ctypes.memset(room, ~data[0] & 0xFF, len(data))  # what is not written shows
    start, turn = 0, 0
    while start < len(data):
        size = min(COPY_SIZES[turn % len(COPY_SIZES)], len(data) - start)
        there = len(data) - start - size
        into, out_of = (there, start) if to_end else (start, there)
        ctypes.memmove(ctypes.byref(room, into), ctypes.byref(source, out_of), size)
        start, turn = start + size, turn + 1
    return bytes(target)


def list_units() -> Iterator[Unit]:
    """List the units of Python and its standard library, and AES where it is installed."""
    yield Unit("long integers", divide_integers, multiply_integers, size=2**12)
    yield Unit("scalar floats", compute_scalars, proof=prove_scalars, universal=False, size=2**10)
    yield Unit("hashes", hash_data)
    yield Unit("checksums", compute_checksums)
    forth, back = (partial(copy_pieces, to_end=to_end) for to_end in (True, False))
    yield Unit("copies", forth, back, size=2**19 + 5)
    for name, compress, decompress in list_compressions():
        make, undo = make_compressible(compress), restore(decompress)
        # Versions of a library may find other, equally right matches.
        yield Unit(name, make, undo, universal=False, size=2**14)
    if has_aes():
        yield Unit("AES", encrypt, decrypt)


def list_compressions() -> Iterator[tuple[str, BytesChange, BytesChange]]:
    """List ways to compress and to restore; a Python may have been built without some."""
    yield "zlib", zlib.compress, zlib.decompress
    with suppress(ImportError):
        import bz2

        yield "bz2", bz2.compress, bz2.decompress
    with suppress(ImportError):
        import lzma

        def restore_lzma(data: bytes) -> bytes:
            try:
                return lzma.decompress(data)
            except lzma.LZMAError as exc:
                raise ValueError(str(exc)) from exc

        yield "lzma", lambda data: lzma.compress(data, preset=0), restore_lzma


def has_aes() -> bool:
    """Whether `cryptography`, which has AES, is installed."""
    return find_spec("cryptography") is not None


def encrypt(data: bytes) -> bytes:
    """Encrypt *data* with AES in CBC mode and, behind it, in GCM, by a key from the data."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CBC

    key, start = data[:AES_KEY_BYTES], data[-AES_BLOCK_BYTES:]
    chained = Cipher(AES(key), CBC(start)).encryptor().update(data)
    return key + start + chained + AESGCM(key).encrypt(start, data, None)


def decrypt(made: bytes) -> bytes:
    """Undo both halves of `encrypt`; nothing if they differ or the tag is wrong."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CBC

    key, start = made[:AES_KEY_BYTES], made[AES_KEY_BYTES:][:AES_BLOCK_BYTES]
    rest = made[AES_KEY_BYTES + AES_BLOCK_BYTES :]
    half = (len(rest) - AES_BLOCK_BYTES) // 2
    unchained = Cipher(AES(key), CBC(start)).decryptor().update(rest[:half])
    try:
        opened = AESGCM(key).decrypt(start, rest[half:], None)
    except InvalidTag:
        return b""
    return opened if opened == unchained else b""
