"""From a TOML file to frozen values, and from these to runs."""
