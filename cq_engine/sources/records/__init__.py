"""Logs that are read record by record, whoever keeps them: files of lines, or topics."""
