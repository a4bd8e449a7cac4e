"""What fits, in which layout, how fast, at what cost, and which card. No torch."""
