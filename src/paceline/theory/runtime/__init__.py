"""How long the updates of a strategy take on a fleet, and how stale they are."""
