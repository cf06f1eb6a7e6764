"""What runs between nodes: links, isolations, admissions."""
