"""How the BMC of a node is reached."""

from __future__ import annotations

from msgspec import Struct


class BmcAccess(Struct, frozen=True, kw_only=True):
    """Where a BMC answers and how to log in: secret, so it never shows its password."""

    address: str
    """A host name or an IP address, with ``:port`` if it is not 443."""
    user: str
    password: str
    ca: str = ""
    """A file with the certificates to trust; empty: those of the system."""
    verify: bool = True
    seconds: float = 120.0

    def __repr__(self) -> str:
        """Leave out the password."""
        return f"BmcAccess(address={self.address!r}, user={self.user!r})"
