"""Which rows of a data set, which groups and which answers."""
