"""The core: a pure state machine over tickets. Standard library only."""
