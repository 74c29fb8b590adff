"""``three-walls`` and ``python -m three_walls``."""

from __future__ import annotations

import atexit
import gc
import os
import sys


def main() -> None:
    """The command line. Its imports take a good half second; an interrupt during these gives a line as well."""
    try:
        # Nearly all that a run makes lives until it ends. Looking for garbage after every 700 new objects takes a tenth
        # of a short run and frees next to nothing; after every 100,000, still a twentieth.
        gc.set_threshold(400_000, 20, 20)
        if sys.argv[1:2] != ["attach"]:  # whose environment is that of the program which it runs
            # NumPy is used for sums and comparisons. The threads that its BLAS starts at import only take time.
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
            # pydantic would look for plugins in every installed package, and import them.
            os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
        from three_walls.cli.signals import finish, handle_signals

        handle_signals()
        from three_walls.cli.main import main as run

        try:
            run()
        finally:
            finish()
            gc.freeze()  # looking for garbage once more as the interpreter shuts down takes a tenth of a short run
        # Freeing every object one by one takes 25 ms, and the system frees them all at once.
        atexit._run_exitfuncs()
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit(0)
    except KeyboardInterrupt:  # before the first line above took effect, or while another error was shown
        os.write(2, b"three-walls: error: interrupted\n")
        os._exit(130)  # half-imported libraries may not survive an orderly exit


if __name__ == "__main__":
    main()
