"""The databases that catalogs lie in."""

from tests.catalog.conftest import database_url, fresh_postgres, postgres_server

__all__ = ["database_url", "fresh_postgres", "postgres_server"]
