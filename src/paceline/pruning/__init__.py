"""Data pruning: samplers that leave samples out of some epochs, by their losses."""
