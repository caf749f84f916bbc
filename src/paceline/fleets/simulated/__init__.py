"""Workers on a virtual clock."""
