"""Outer loops around the trainer or around runs of their own."""
