"""Who earned it? Rewards to advantages, returns and targets, per row or per decision."""
