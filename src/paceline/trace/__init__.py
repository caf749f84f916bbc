"""What happened in a run: the record, and what can be read out of it. Needs no torch."""
