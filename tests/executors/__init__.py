"""Running tasks in workers that may die."""
