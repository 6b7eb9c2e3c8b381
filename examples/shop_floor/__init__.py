"""Who works on the shop floor, each in a thread: who orders, who picks, and who tells the customers."""
