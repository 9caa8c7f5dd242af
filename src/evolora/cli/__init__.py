"""The command `evolora`: one small file per verb; parses, calls, prints."""

from __future__ import annotations


def main() -> None:
    """Runs the command; the entry point of the package."""
    import os

    # Threads that wait should sleep: spinning ones stand in each other's way as soon as another process wants
    # a core (measured: two threads beside one busy process on two cores were 7 times as slow). The OpenMP
    # library reads this when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from evolora.cli.app import app

    app()
