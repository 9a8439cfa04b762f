"""The servers of LADR; each runs as `python -m services.NAME`."""
