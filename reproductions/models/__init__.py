"""The models and losses of the papers."""
