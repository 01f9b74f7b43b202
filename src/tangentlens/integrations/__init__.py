"""The lens in other people's training loops, one file a framework. Measuring happens in `lens`, not here."""
