"""The servers of LADR; each runs as `python -m services.NAME`."""

import os

# gRPC's core writes lines of its own to stderr, beside the structured log; what matters of them reaches us as an error.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
