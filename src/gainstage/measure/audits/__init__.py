"""Checks that a measured gain is what it seems to be."""
