"""Parameters at fixed places in memory that processes share."""
