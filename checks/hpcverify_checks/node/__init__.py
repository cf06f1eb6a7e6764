"""What checks read of the node and its devices, and how they place and time work there."""
