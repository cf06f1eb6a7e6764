"""A folder for PYTHONPATH: it puts faults under a rank."""
