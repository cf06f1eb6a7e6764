"""Tests of the readers, on trees of files and on an NVML with faults."""
