"""Shared by the commands that call an aggregator: the connection, option types, tables, plans as text."""
