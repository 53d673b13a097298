"""Which problems the loops see next, decided once a cycle from training signals alone."""
