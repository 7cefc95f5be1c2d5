"""How steps in environments come about."""
