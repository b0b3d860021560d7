"""Private empirical distribution functions."""
