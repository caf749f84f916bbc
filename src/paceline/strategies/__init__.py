"""Who waits for whom: one rule per file, none of which sees a tensor or a clock."""
