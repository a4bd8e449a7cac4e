"""Files on disk → what a model is. Headers without torch; weights, tokenizer and chat template lazily with it."""
