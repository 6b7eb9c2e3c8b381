"""The prompt: what `cq` shows and reads. It talks to an engine through `ports` and knows nothing of its inside."""
