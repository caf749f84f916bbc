"""Largest stable learning rates of SGD with delayed gradients."""
