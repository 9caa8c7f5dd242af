"""The command `evolora`: one small file per verb; parses, calls, prints."""

from __future__ import annotations


def main() -> None:
    """Runs the command; the entry point of the package."""
    from evolora.cli.app import app

    app()
