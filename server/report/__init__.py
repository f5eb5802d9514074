"""What a run says of itself: the data card."""
