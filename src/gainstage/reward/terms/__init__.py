"""Reward terms that are no verdict: lengths, and what the policy says of its own answer."""
