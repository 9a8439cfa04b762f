"""LADR: latency-aware dynamic routing for language models."""
