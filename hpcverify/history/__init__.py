"""
The measurements of a fleet over many nights, in a DuckDB file that anybody can read.

The run documents are the truth, and this file is made from them. A notebook asks with

>>> from hpcverify.history import read_measurements
>>> read_measurements(checks=["gemm"], nodes=["gpu0017"])  # doctest: +SKIP

See docs/reference/history.md for the columns, and for how others read the same file.
"""

from __future__ import annotations

from hpcverify.history.reader import read_measurements

__all__ = ["read_measurements"]
