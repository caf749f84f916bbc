"""What is called, shown and logged while a run trains."""
