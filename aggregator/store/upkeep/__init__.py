"""What keeps a store over the years: backup, restore, verify, compact."""
