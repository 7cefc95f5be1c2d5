"""Answers to text problems: one context, continued."""
