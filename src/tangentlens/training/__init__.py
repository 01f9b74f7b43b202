"""A plain training loop and its objectives. The lens decides what is measured, not the loop."""
