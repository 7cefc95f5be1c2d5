"""Environments that are stepped: own batched ones, Gymnasium's, and what wraps them."""
