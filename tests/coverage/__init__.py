"""What fails in real clusters and what other tools look for, with what sees it here."""
