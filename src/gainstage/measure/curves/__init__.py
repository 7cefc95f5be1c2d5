"""Measurements that are functions of something: of spend, of length, of difficulty."""
