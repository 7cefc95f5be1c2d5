"""Objectives that imitate: likelihood, preference pairs, a teacher's distribution."""
