"""Nets that are neither policy nor stage: what several rooms build on."""
