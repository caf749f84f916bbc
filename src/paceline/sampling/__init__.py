"""Which samples a worker trains on, and in what order."""
