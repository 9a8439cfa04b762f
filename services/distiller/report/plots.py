"""The report's pictures, each a PNG. What was not measured has none."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

Report = Mapping[str, Any]
_SIZE_IN, _DPI = (7.0, 3.2), 100
_TEACHER, _STUDENT, _BEFORE = "#6b7280", "#1d6fb8", "#d9a441"


def pictures(report: Report) -> dict[str, bytes]:
    """The pictures by name, in the order in which they are shown."""
    drawn = {name: draw(report) for name, draw in _DRAWN.items()}
    return {name: picture for name, picture in drawn.items() if picture}


def losses(report: Report) -> bytes:
    curve = report["curve"]
    parts = sorted({part for one in curve for part in one["losses"]}, key=lambda part: (part != "total", part))
    if not parts:
        return b""
    figure, axes = figure_of(1)
    for part in parts:
        points = [(one["step"], one["losses"].get(part)) for one in curve]
        steps, values = zip(*((step, value) for step, value in points if value is not None), strict=True)
        axes[0].plot(
            steps,
            values,
            label=_UNITS.get(part, part),
            linewidth=2 if part == "total" else 1.2,
            marker="." * (len(steps) < 20),
        )
    axes[0].set(title="Loss by part", xlabel="step", ylabel="weighted loss", ylim=(0, None))
    axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].legend(fontsize="small")
    return png(figure)


def _agreement(report: Report) -> bytes:
    figures = report["figures"]
    figure, axes = figure_of(2)
    bars(axes[0], "KL to the teacher (less is better)", [figures["kl_untrained"], figures["kl"]], TRAINED, "{:.3f}")
    shares = [100 * figures["top1_untrained"], 100 * figures["top1"]]
    bars(axes[1], "Same likeliest token (%)", shares, TRAINED, "{:.1f}")
    axes[1].set_ylim(0, 100)
    return png(figure)


def _elo(report: Report) -> bytes:
    arena = report.get("arena")
    if not arena:
        return b""
    figure, axes = figure_of(1)
    names = ["untrained", "student"]
    for place, (name, color) in enumerate(zip(names, (_BEFORE, _STUDENT), strict=True)):
        rating = arena["ratings"][name]
        axes[0].hlines(place, rating["low"], rating["high"], color=color, linewidth=4, alpha=0.5)
        axes[0].plot(rating["elo"], place, "o", color=color, markersize=9)
        axes[0].annotate(
            f"{rating['elo']:.0f}", (rating["elo"], place), (0, 10), textcoords="offset points", ha="center"
        )
    axes[0].axvline(arena["teacher_elo"], color=_TEACHER, linestyle="--", label="teacher")
    axes[0].set(title="Elo against the teacher, with its interval", xlabel="Elo", ylim=(-0.6, 1.7))
    axes[0].set_yticks(range(2), ["before training", "student"])
    axes[0].legend(fontsize="small")
    return png(figure)


def _refusals(report: Report) -> bytes:
    figures = report["figures"]
    if "refused_harmful" not in figures:
        return b""
    figure, axes = figure_of(2)
    for one, kind, title in zip(axes, ("harmful", "harmless"), ("more", "less"), strict=True):
        values = [100 * figures[f"refused_{kind}_teacher"], 100 * figures[f"refused_{kind}"]]
        bars(one, f"Refused of {kind} prompts (%; {title} is better)", values, MODELS, "{:.0f}")
        one.set_ylim(0, 110)
    return png(figure)


def _cost(report: Report) -> bytes:
    figure, axes = figure_of(3)
    adds, memory, speed = report["multiply_adds_a_token"], report["memory_bytes"], report["speed"]
    layers = [sum(adds[name][part] for part in ("rest", "attention")) / 1e6 for name in ("teacher", "student")]
    heads = [adds[name]["head"] / 1e6 for name in ("teacher", "student")]
    names = [name for name, _ in MODELS]
    axes[0].bar(names, layers, color=[color for _, color in MODELS])
    axes[0].bar(names, heads, bottom=layers, color=[color for _, color in MODELS], alpha=0.45, label="output head")
    axes[0].set_title("Million multiply-adds a token", fontsize="small")
    axes[0].legend(fontsize="x-small")
    weights = [memory[name]["float32"] / 2**20 for name in ("teacher", "student")]
    bars(axes[1], "MiB of weights (float32)", weights, MODELS, "{:,.0f}")
    paces = [speed["models"][name]["decode"] for name in ("teacher", "student")]
    bars(axes[2], "Tokens written a second", paces, MODELS, "{:,.3g}")
    return png(figure)


_UNITS = {  # of the parts of a loss
    **{part: f"{part} (nats)" for part in ("task", "kl", "refusal")},
    **{part: f"{part} (squared distance)" for part in ("attention", "hidden")},
}
TRAINED = [("before training", _BEFORE), ("student", _STUDENT)]
MODELS = [("teacher", _TEACHER), ("student", _STUDENT)]
_DRAWN: dict[str, Callable[[Report], bytes]] = {
    "losses": losses,
    "agreement": _agreement,
    "elo": _elo,
    "refusals": _refusals,
    "cost": _cost,
}


def figure_of(columns: int) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=_SIZE_IN, layout="constrained", dpi=_DPI)
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def bars(axes: Axes, title: str, values: Sequence[float], names: Sequence[tuple[str, str]], form: str) -> None:
    drawn = axes.bar([name for name, _ in names], values, color=[color for _, color in names])
    axes.bar_label(drawn, [form.format(value) for value in values])
    axes.set_title(title, fontsize="small")
    axes.margins(y=0.15)


def png(figure: Figure) -> bytes:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    made = io.BytesIO()
    figure.savefig(made, format="png")
    return made.getvalue()
