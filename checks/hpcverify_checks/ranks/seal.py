"""
How both ends of a connection to a board show that they know the secret of their job.

The secret itself never travels. The server greets each connection with a challenge, the
client answers with a number of its own, and from both and the secret follows the key of this
one connection (HMAC, RFC 2104, with SHA-256). What is signed with it means nothing to any
other connection, so a message that somebody recorded cannot be sent again.

Messages are signed and not hidden: whoever sees the network can read them.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import struct
from dataclasses import dataclass

MIN_SECRET_CHARACTERS = 32
NONCE_BYTES = 32
MAC_BYTES = 32
HEADER = struct.Struct(f"!I{MAC_BYTES}s")
"""Before each message: its bytes, and its signature."""
PROOF, REQUEST, ANSWER = b"proof", b"request", b"answer"
"""What is signed; a connection has one of each."""


@dataclass(frozen=True, slots=True)
class Seal:
    """What both ends of one connection sign with."""

    key: bytes

    @classmethod
    def make(cls, secret: str, group: str, challenge: bytes, nonce: bytes) -> Seal:
        """Derive the key of the connection with this *challenge* and *nonce*."""
        of_group = _sign(secret.encode(), b"group\0" + group.encode())
        return cls(_sign(of_group, challenge + nonce))

    def sign(self, purpose: bytes, data: bytes = b"") -> bytes:
        """Compute the signature of *data*."""
        return _sign(self.key, purpose + b"\0" + data)

    def pack(self, purpose: bytes, data: bytes) -> bytes:
        """Put the header before *data*."""
        return HEADER.pack(len(data), self.sign(purpose, data)) + data

    def require(self, signature: bytes, purpose: bytes, data: bytes = b"") -> None:
        """
        Compare the *signature* of *data*, in a time that tells nothing.

        Raises:
            OSError: it is not one of somebody who knows the secret.

        """
        if not hmac.compare_digest(signature, self.sign(purpose, data)):
            raise OSError(errno.EBADMSG, "the other side does not know the secret of this job")


def _sign(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, hashlib.sha256)


def make_nonce() -> bytes:
    """Make what no connection ever had."""
    return os.urandom(NONCE_BYTES)
