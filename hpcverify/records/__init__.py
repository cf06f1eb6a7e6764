"""What is kept: run documents, their index, and the spool that nodes leave them in."""
