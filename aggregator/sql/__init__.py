"""Migrations, views and macros as .sql files."""
