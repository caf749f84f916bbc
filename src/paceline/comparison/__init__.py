"""Several runs compared: the jobs, the pool of processes for them, tables, and a verdict in words."""
