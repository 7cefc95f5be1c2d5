"""Objectives: pure functions of what the policy says and what the batch holds; they add inside one learner."""
