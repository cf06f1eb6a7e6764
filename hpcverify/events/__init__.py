"""Events: what changed in a fleet, for the collectors of a site."""
