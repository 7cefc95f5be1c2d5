"""Objectives that fit values to returns."""
