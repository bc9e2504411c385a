"""What is worth keeping: one policy a file."""
