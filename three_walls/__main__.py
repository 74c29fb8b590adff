"""``three-walls`` and ``python -m three_walls``."""

from __future__ import annotations

import os

from three_walls.cli.signals import handle_signals


def main() -> None:
    """The command line. Its imports take a second or more; an interrupt during these gives a line as well."""
    handle_signals()
    try:
        from three_walls.cli.main import main as run
    except KeyboardInterrupt:
        os.write(2, b"three-walls: error: interrupted\n")
        os._exit(130)  # half-imported libraries may not survive an orderly exit
    run()


if __name__ == "__main__":
    main()
