"""Models to watch: small reference ones built from their configuration. What is measured may not enter here."""
