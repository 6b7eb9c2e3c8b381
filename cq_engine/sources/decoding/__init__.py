"""USING LOG over PostgreSQL's own log: logical decoding, read from a replication slot."""
