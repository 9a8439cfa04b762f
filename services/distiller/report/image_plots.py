"""Pictures of an image encoder's report, each a PNG."""

from __future__ import annotations

from services.distiller.report.plots import MODELS, TRAINED, Report, bars, figure_of, losses, png


def pictures(report: Report) -> dict[str, bytes]:
    """The pictures by name."""
    drawn = {"losses": losses(report), "image_agreement": _agreement(report), "image_cost": _cost(report)}
    return {name: picture for name, picture in drawn.items() if picture}


def _agreement(report: Report) -> bytes:
    figures = report["figures"]
    titles = {"top1": "Same class (%)", "retrieval": "Same neighbours (%)", "accuracy": "Right class (%)"}
    shown = {name: title for name, title in titles.items() if name in figures}
    figure, axes = figure_of(len(shown))
    for one, (name, title) in zip(axes, shown.items(), strict=True):
        bars(one, title, [100 * figures[f"{name}_untrained"], 100 * figures[name]], TRAINED, "{:.1f}")
        one.set_ylim(0, 110)
    return png(figure)


def _cost(report: Report) -> bytes:
    adds, memory = report["multiply_adds_a_picture"], report["memory_bytes"]
    names = ("teacher", "student")
    figure, axes = figure_of(2)
    whole = [sum(adds[name][part] for part in ("head", "rest", "attention")) / 1e6 for name in names]
    bars(axes[0], "Million multiply-adds a picture", whole, MODELS, "{:,.1f}")
    bars(axes[1], "MiB of weights (float32)", [memory[name]["float32"] / 2**20 for name in names], MODELS, "{:,.1f}")
    return png(figure)
