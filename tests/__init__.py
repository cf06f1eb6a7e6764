"""The tests mirror the code; each test's name states its rule."""
