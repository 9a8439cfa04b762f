"""The student in 8 bits, as the page tells it; its source is `Notes` of `services.common.int8`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.distiller.report.few import only
from services.distiller.report.html import number, percent, table

_KINDS = {"w8a8": "weights and activations", "weight_only": "weights alone"}
_STEPS = {
    "quantised": "before repair",
    "smooth": "outliers of activations moved into weights",
    "keep_sensitive": "layers that lose most kept as they were",
    "lora": "adapters beside the layers",
    "saved": "as it is saved",
}


def finding(report: Mapping[str, Any]) -> list[str]:
    """What a reader should know first, as one sentence; none where there is no such form."""
    if not (found := report.get("int8")):
        return []
    share = percent(found["bytes_after"] / found["bytes_before"]) if found["bytes_before"] else "–"
    return [
        f"In 8 bits it has {share} of the bytes, and a KL of {number(found['kl'])} nats a token to what it was before"
        f"{only(found['measured_dialogues'], found['measured_tokens'])}; it "
        + ("may serve." if found["publish"] else "does not serve.")
    ]


def section(report: Mapping[str, Any]) -> str:
    """Its figures, and its KL step by step."""
    if not (found := report.get("int8")):
        return ""
    rows = [
        ("in 8 bits", _KINDS.get(found["kind"], found["kind"]), "Of the linear layers; all else stays as it was."),
        ("KL before repair, nats a token", number(found["kl_before"]),
         "How far its distribution over the next token is from that of the student that it was made of."),
        ("KL, nats a token", number(found["kl"]), "The same for the form that was saved. 0: nothing is lost."),
        ("threshold", number(found["threshold"]), "It is repaired if the KL before is higher, and serves if the KL is not."),
        ("goal", number(found["goal"]), "Repair goes on until the KL is no higher, or nothing is left to do."),
        ("bytes", f"{found['bytes_after']:,}", f"Of its weights; those that it was made of have {found['bytes_before']:,}."),
        ("layers kept", f"{len(found['kept']):,}", "Linear layers that stay as they were; report.json names them."),
        ("records fitted to", f"{found['dialogues']:,}", "What the repairs learn from, and layers are chosen on."),
        ("records measured on", f"{found['measured_dialogues']:,}",
         f"Their {found['measured_tokens']:,} tokens are what every KL here is of; nothing was fitted to them."),
        ("may serve", "yes" if found["publish"] else "no", found["why"] or "It goes under the model root."),
    ]  # fmt: skip
    steps = [
        (
            _STEPS.get(one["step"], one["step"]),
            number(one["kl"]),
            f"{one['seconds']:.1f}",
            f"{one['bytes']:,}",
            one["said"],
        )
        for one in found["steps"]
    ]
    return (
        "<h2>In 8 bits</h2>"
        + table(("", "value", "what it means"), rows)
        + table(("step", "KL after it", "seconds", "bytes", "what came of it"), steps)
    )
