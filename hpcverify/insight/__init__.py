"""What the nights say of the fleet: peers, past, drift, outlook."""
