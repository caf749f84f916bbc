"""Which learning rates converge in spite of stale gradients."""
