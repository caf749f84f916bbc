"""Asynchronous SGD as a stochastic delay differential equation: paths, moments, theorems."""
