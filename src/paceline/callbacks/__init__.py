"""What is told of a run's progress while it goes on."""
