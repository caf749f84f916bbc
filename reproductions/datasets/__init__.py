"""Real data sets: fetched as published, read in their original formats."""
