"""Many nodes at once: whom to verify next, and what came of it."""
