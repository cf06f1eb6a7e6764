"""How often nodes fail, and what that costs jobs. Pure: from outages to numbers with intervals."""
