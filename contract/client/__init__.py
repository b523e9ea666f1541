"""Parts of the commands that call an aggregator: its connection, option types, tables, texts of plans."""
