"""What every room uses: errors, types, values, time."""
