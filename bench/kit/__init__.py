"""What all benchmarks share: workers, paired runs, rows with goals, reports."""
