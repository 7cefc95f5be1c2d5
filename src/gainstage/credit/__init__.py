"""Who earned it? Rewards to advantages, returns and targets, per row or per decision."""

ROW_REWARDS = ("reward", "turn_rewards?", "turn_mask?", "rewards?", "mask?")
"""Columns behind `Batch.rewards_at("row")`; a question mark: read where it is there."""

STEP_REWARDS = ("reward", "turn_rewards?", "turn_mask?", "rewards?", "turn?", "mask")
"""Columns behind `Batch.rewards_at("step")`."""
