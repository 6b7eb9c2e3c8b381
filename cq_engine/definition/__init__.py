"""A continuous query analysed, checked and computed for the first time."""
