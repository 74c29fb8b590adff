"""``three-walls`` and ``python -m three_walls``."""

from __future__ import annotations

import os


def main() -> None:
    """The command line. Its imports take a second or more; an interrupt during these gives a line as well."""
    try:
        from three_walls.cli.signals import finish, handle_signals

        handle_signals()
        from three_walls.cli.main import main as run

        try:
            run()
        finally:
            finish()
    except KeyboardInterrupt:  # before the first line above took effect, or while another error was shown
        os.write(2, b"three-walls: error: interrupted\n")
        os._exit(130)  # half-imported libraries may not survive an orderly exit


if __name__ == "__main__":
    main()
