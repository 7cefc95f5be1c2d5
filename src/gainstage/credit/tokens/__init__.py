"""Credit per decision: spreading, normalising and scoring tokens."""
