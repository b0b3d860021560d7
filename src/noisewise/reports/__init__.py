"""Reports for people: one HTML file that needs nothing else."""

from noisewise.reports.page import Page

__all__ = ["Page"]
