"""The pages of runs and studies: verdict, figures, tables, in one file that opens offline."""

from evolora.report.page import write_report
from evolora.report.study_data import is_study, read_study
from evolora.report.study_page import write_study_report

__all__ = ["is_study", "read_study", "write_report", "write_study_report"]
