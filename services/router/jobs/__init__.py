"""Durable jobs: what a job is (`machine`), where it is kept (`store`), and who runs it (`dispatcher`)."""
