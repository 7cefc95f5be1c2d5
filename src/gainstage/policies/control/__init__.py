"""Policies, critics and their parts for environments that are stepped."""
