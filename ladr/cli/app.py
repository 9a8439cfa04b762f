"""The command's root: which commands there are, and how each failure ends."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Any, NoReturn

import click

from ladr.cli.bench import bench
from ladr.cli.chat import chat
from ladr.cli.configuration import config
from ladr.cli.distill import distill
from ladr.cli.doctor import doctor
from ladr.cli.fleet import drain, workers
from ladr.cli.generate import generate
from ladr.cli.jobs import jobs
from ladr.cli.output import escape
from ladr.cli.rollout import COMMANDS as ROLLOUT
from ladr.cli.service import SERVICES, service_command
from ladr.cli.up import up
from ladr.config import ConfigError
from ladr.errors import InvalidRequest, LadrError

OK, FAILED, MISUSE = 0, 1, 2


class Ladr(click.Group):
    """Ends with 0 (ok), 1 (failed) or 2 (misuse); every failure is one line on stderr."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        extra["standalone_mode"] = False
        try:
            code = super().main(*args, **extra)
            sys.stdout.flush()
        except BrokenPipeError:  # who read us has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(FAILED)
        except (KeyboardInterrupt, click.Abort):
            _end("interrupted", FAILED)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(MISUSE)
        except click.UsageError as error:
            _end(_with_help(error), MISUSE)
        except click.ClickException as error:
            _end(error.format_message(), error.exit_code)
        except (ConfigError, InvalidRequest) as error:
            _end(str(error), MISUSE)
        except UnicodeError:
            _end("an argument, or what was read, is not UTF-8 text", MISUSE)
        except (LadrError, OSError) as error:
            _end(str(error), FAILED)
        sys.exit(code if isinstance(code, int) else OK)


def _end(message: str, code: int) -> NoReturn:
    one_line = " ".join(message.split()) or "it failed without a message; run `ladr doctor`"
    click.echo(f"ladr: {escape(one_line)}", err=True)
    sys.exit(code)


def _with_help(error: click.UsageError) -> str:
    message = error.format_message().rstrip(".")
    path = error.ctx.command_path if error.ctx else "ladr"
    return f"{message} (see {path} --help)"


@click.group(cls=Ladr, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("ladr"), prog_name="ladr", message="%(prog)s %(version)s")
def main() -> None:
    """LADR: language models behind one router that knows how loaded each worker is.

    Start with `ladr up`, then `ladr chat`. Settings: ladr.yaml, LADR_SECTION__KEY, or flags.
    """


_commands = (up, chat, generate, jobs, workers, drain, distill, bench, doctor, config)
for command in (*_commands, *map(service_command, SERVICES)):
    main.add_command(command)
for command in ROLLOUT:
    distill.add_command(command)
