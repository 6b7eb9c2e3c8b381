"""What transactions, queries and refreshes share."""
