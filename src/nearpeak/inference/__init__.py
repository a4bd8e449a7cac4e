"""The engine that answers: loads a model, keeps its cache, runs it token by token, chooses the next one."""
