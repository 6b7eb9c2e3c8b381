"""Where changes come from: what is outside of the warehouse, and how it is asked what has changed."""
