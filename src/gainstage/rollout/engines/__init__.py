"""Engines: what draws the tokens. All answer `generate(requests, max_new, stop, want)`."""
