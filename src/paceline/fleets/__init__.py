"""Where the workers are, and on which clock they run."""
