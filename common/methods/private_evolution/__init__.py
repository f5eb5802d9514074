"""Private Evolution: a population of synthetic records that private records vote on, round after round."""
