"""What moves the model: the only part, with the fleets behind it, that knows torch."""
