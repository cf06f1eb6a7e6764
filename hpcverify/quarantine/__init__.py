"""The life of a node: what state it is in, why, and how it is held out of service."""
