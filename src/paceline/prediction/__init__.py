"""What can be said before a run, and where each number is from."""
