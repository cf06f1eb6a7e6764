"""Products and copies whose every bit is known, and what decides which part made a wrong one."""
