"""Where tests find what ships beside the code."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
SAMPLES = REPOSITORY / "sample_traces"
BRIDGE_RUNS = REPOSITORY / "tests" / "bridge_runs"
BENCHMARKS = REPOSITORY / "benchmarks"
MEASURED_BASES = BENCHMARKS / "traces"


def is_open(path: Path) -> bool:
    """Whether this process has the file at ``path`` open."""
    return path.resolve() in {descriptor.resolve() for descriptor in Path("/proc/self/fd").iterdir()}
