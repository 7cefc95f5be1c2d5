"""Credit along the time axis: returns, value-based advantages, sample weights."""
