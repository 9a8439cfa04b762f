"""What LADR costs and gains, measured. `python -m benchmarks` runs all, `python -m benchmarks --list` says what there is."""
