"""From values to the reward that is used: sums, gates, scales."""
