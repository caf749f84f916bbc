"""Samples, who has which of them, and the mini-batches drawn from them."""
