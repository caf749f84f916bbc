"""Numbers, tables and figures from what a run left behind."""
