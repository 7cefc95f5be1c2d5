"""Text environments: tools and small worlds."""
