"""Reports for people: one HTML file that needs nothing else."""

from noisewise.reports.chart import Chart, Thresholds
from noisewise.reports.page import Page, command_line, promised, seeded as seeded

__all__ = ["Chart", "Page", "Thresholds", "command_line", "promised"]
