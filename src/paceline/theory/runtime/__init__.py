"""Expected time of an update, wasted work and staleness of a strategy on a fleet."""
