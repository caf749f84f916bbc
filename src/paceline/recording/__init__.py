"""Recording the steps of any training loop: see ``paceline.record``."""
