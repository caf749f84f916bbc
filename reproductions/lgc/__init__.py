"""Xu, *Live Gradient Compensation for Evading Stragglers in Distributed Learning*."""
