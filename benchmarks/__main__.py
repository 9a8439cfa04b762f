"""`python -m benchmarks [NAME…]`: run benchmarks and print their tables, or JSON with `-o json`."""

from __future__ import annotations

import argparse
import ast
import json
import sys
import textwrap
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from ladr.bench.machine import machine

NAMES = (
    "routing_mesh",
    "convergence",
    "survival",
    "router_overhead",
    "frozen_worker",
    "routing_tick",
    "routing_sim",
    "tuner",
    "transformers_batching",
    "speculative",
    "distill_loss",
    "distill_gkd",
    "distill_ablation",
    "distill_vision",
    "int8_repair",
    "jobs_latency",
    "jobs_import",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure what LADR costs and gains.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run; none: all, in turn")
    parser.add_argument("--list", action="store_true", help="say what there is and what each measures")
    parser.add_argument("--quick", action="store_true", help="run each once and small: shows that it works, no figures")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    args = parser.parse_args()
    if unknown := set(args.names) - set(NAMES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there is {', '.join(NAMES)}")
    if args.list:
        for name in NAMES:
            print(f"{name}\n{_about(name)}\n")
        return
    where = machine()
    if args.output == "text":
        print("  ".join(f"{key}: {value}" for key, value in where.items()))
    found = {name: _run(name, args.quick, args.output) for name in dict.fromkeys(args.names or NAMES)}
    if args.output == "json":
        json.dump({"machine": where, "quick": args.quick, "benchmarks": found}, sys.stdout, indent=2)
        print()


def _run(name: str, quick: bool, output: str) -> dict[str, Any]:
    began_s = time.monotonic()
    report = import_module(f"benchmarks.{name}").run(quick)
    took_s = time.monotonic() - began_s
    if output == "text":
        print(f"\n{name} ({took_s:.0f} s{', quick' if quick else ''})\n\n{report}")
    return {"seconds": round(took_s, 1), **report.plain()}


def _about(name: str) -> str:
    """A benchmark's docstring, without importing what it needs."""
    path = Path(__file__).with_name(f"{name}.py")
    if not path.exists():
        path = Path(__file__).with_name(name) / "__init__.py"
    return textwrap.indent(ast.get_docstring(ast.parse(path.read_text())) or "", "  ")


if __name__ == "__main__":
    main()
