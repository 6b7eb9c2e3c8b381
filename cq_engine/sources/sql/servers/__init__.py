"""What SQLite, PostgreSQL, MariaDB and other databases do each in a way of their own."""
