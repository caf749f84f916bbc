"""Before a run: how fast, how stale, and up to which step it converges. ``answer.predict`` is the way in."""
