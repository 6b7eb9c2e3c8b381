"""From a parsed query to the algebra."""
