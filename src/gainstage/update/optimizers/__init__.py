"""Optimizers: they own state and turn gradients into weight steps."""
