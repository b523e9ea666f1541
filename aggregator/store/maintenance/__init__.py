"""Backup, restore, verify and compact."""
