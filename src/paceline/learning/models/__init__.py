"""Workers that hand in models of their own."""
