"""Models to measure: loaded from a hub or a directory, or small reference ones. Nothing here knows of measures."""
