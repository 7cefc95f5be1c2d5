"""Objectives that move a policy by its log-probs."""
