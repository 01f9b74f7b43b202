"""Text to tokens: where text comes from, how it is cut, how often each token occurs. Models may not enter here."""
