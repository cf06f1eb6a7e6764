"""Checks that inject faults into themselves, and one that does not."""
