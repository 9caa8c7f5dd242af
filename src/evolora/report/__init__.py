"""The page of a run: verdict, figures, tables, in one file that opens offline."""

from evolora.report.page import write_report

__all__ = ["write_report"]
