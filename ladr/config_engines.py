"""What each engine needs: said by `ladr doctor`, and by a worker that finds it missing."""

from __future__ import annotations

# engine → what to run, in a checkout, where a library of its is missing
INSTALL = {
    "llamacpp": "make setup",
    "openai": "make setup",
    "simulated": "make setup",
    "transformers": "make setup-torch",
    "vllm": ".venv/bin/pip install vllm (it needs a GPU)",
}
