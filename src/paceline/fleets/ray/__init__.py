"""Workers on many machines: actors of a Ray cluster."""
