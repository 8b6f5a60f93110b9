"""`python -m toril.cli`: the command without a script in PATH."""

from __future__ import annotations

from toril.cli import main

if __name__ == "__main__":
    main()
