"""deploy/Dockerfile as data: its stages, with what each copies and what its commands read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from tests.processes import ROOT

FILE = ROOT / "deploy" / "Dockerfile"


@dataclass
class Stage:
    """One stage, with what it has from the stage that it is built on."""

    name: str
    copied: list[PurePosixPath] = field(default_factory=list)  # sources, from the repository's root
    installed: list[tuple[str, bool]] = field(default_factory=list)  # requirements file, whether it was there by then
    command: list[str] = field(default_factory=list)


def stages() -> dict[str, Stage]:
    """The stages by name."""
    found: dict[str, Stage] = {}
    stage = Stage("")
    text = re.sub(r"\\\n", " ", FILE.read_text())
    for instruction, rest in re.findall(r"^([A-Z]+) (.+)$", text, re.MULTILINE):
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            onto = found.get(base, Stage(""))
            stage = found[name] = Stage(name, list(onto.copied), list(onto.installed), list(onto.command))
        elif instruction == "COPY":
            *sources, target = rest.split()
            assert [target] == sources, f"what is copied keeps its path: COPY {rest}"
            stage.copied += [PurePosixPath(source) for source in sources]
        elif instruction == "RUN":
            for name in re.findall(r"(?:-r|--requirement) (\S+)", rest):
                stage.installed.append((name, PurePosixPath(name) in stage.copied))
        elif instruction == "CMD":
            stage.command = re.findall(r'"([^"]+)"', rest)
    return found


def sent_to_the_builder() -> set[str]:
    """Names at the root that .dockerignore lets through (it ignores all, then names what is sent)."""
    lines = (ROOT / ".dockerignore").read_text().split()
    assert lines[0] == "*"
    return {line[1:] for line in lines if line.startswith("!")}
