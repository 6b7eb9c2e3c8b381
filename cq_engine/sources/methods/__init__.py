"""How captures find changes in databases: a module for each method of Carnes & Hanson (1998)."""
