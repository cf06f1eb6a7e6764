"""Every fault that the NVML double can inject, and what comes of it."""
