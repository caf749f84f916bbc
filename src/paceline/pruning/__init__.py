"""Data fine-pruning: leave samples out of some epochs by how they perform, by chance, or softly."""
