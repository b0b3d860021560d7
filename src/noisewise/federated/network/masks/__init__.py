"""Masked aggregation between processes: one server, parties that stay to the end."""
