"""Where tests find what ships beside the code."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
SAMPLES = REPOSITORY / "sample_traces"
BRIDGE_RUNS = REPOSITORY / "tests" / "bridge_runs"
BENCHMARKS = REPOSITORY / "benchmarks"
