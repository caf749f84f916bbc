"""Gao and Chen, *Group SGD*, 2020."""
