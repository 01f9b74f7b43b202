"""Text to tokens: sources of text, tokenization, windows of tokens, token counts. Nothing here knows of models."""
