"""A fault-injecting NVML: `nvmllab.Lab` drives it, README.md has its language."""
