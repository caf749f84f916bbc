"""Real workers on one machine: processes that share memory with the server."""
