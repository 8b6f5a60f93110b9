"""`python -m toril.cli`, for those whose PATH does not have the command."""

from __future__ import annotations

from toril.cli import main

if __name__ == "__main__":
    main()
