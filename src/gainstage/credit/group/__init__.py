"""Credit by comparison inside a group of answers to one problem."""
