"""Rewards that the task does not pay: for what is new, and for what an action changes."""
