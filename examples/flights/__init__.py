"""The flights example's data and scripts; the program is 05_flights.py."""
