"""A plain training loop and its objectives. What is measured is the lens's business, not the loop's."""
