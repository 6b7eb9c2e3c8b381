"""The engine as users meet it."""
