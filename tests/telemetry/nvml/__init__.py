"""The room that calls NVML, on an NVML with faults."""
