"""What the papers trained: their models and losses."""
