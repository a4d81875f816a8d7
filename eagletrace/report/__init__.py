"""Shows results to people: all from the same result objects."""
