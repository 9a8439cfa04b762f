"""`ladr generate`: one prompt, one answer."""

from __future__ import annotations

import sys
from typing import Any

import click

from ladr.answer import Answer
from ladr.cli.asking import asking_options, show
from ladr.cli.output import as_dict, emit, output_option, write
from ladr.sync_client import SyncClient
from ladr.v1.generation_pb2 import Delta, TokenLogprob


@click.command()
@click.argument("prompt")
@click.option("--system", default="", help="What the model is told before.")
@click.option("--raw", is_flag=True, help="The prompt as it is, without the model's chat template.")
@click.option("--logprobs", type=int, help="Log-probabilities, with this many alternatives (0 to 20); needs -o json.")
@click.option("--stream/--no-stream", default=True, help="Piece by piece, or all at the end (-o json: one object).")
@asking_options
@output_option
def generate(prompt: str, system: str, stream: bool, address: str, output: str, **options: Any) -> None:
    """Generate an answer to PROMPT; - reads it from stdin."""
    prompt = sys.stdin.read() if prompt == "-" else prompt
    if not prompt:
        raise click.UsageError("the prompt is empty; give one, or - and text on stdin")
    if options["logprobs"] is not None and output != "json":
        raise click.UsageError("--logprobs needs -o json; text has no place for them")
    if system:
        if options["raw"]:
            raise click.UsageError("--system needs the chat template that --raw leaves out")
        options["messages"] = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
        prompt = ""
    with SyncClient(address) as client, client.generate(prompt, **options) as answer:
        if stream:
            show(answer, output, [])
            return
        logprobs = [each for event in answer if isinstance(event, Delta) for each in event.logprobs]
        _show_whole(answer.answer(), logprobs, output)


def _show_whole(answer: Answer, logprobs: list[TokenLogprob], output: str) -> None:
    if output == "text":
        write(answer.text + "\n")
        return
    emit(
        {
            "text": answer.text,
            "reason": answer.reason,
            "stop_sequence": answer.stop_sequence,
            "usage": as_dict(answer.usage),
            "timings": as_dict(answer.timings),
            "worker_id": answer.worker_id,
            "model": answer.model,
            "request_id": answer.request_id,
            "attempts": answer.attempts,
            "resumed": answer.resumed,
            "token_ids": list(answer.token_ids),
            "logprobs": [as_dict(each) for each in logprobs],
        }
    )
