"""The weather example's data and scripts; the program is 08_weather.py."""
