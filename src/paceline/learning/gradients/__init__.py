"""Workers that hand in gradients."""
