"""What all reproductions share: plans, runs that are kept, claims, the card, figures."""
