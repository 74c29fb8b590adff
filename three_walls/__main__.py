"""``python -m three_walls``."""

from three_walls.cli import main

main()
