"""Messages for brokers: what is sent, and one module for each client library."""
