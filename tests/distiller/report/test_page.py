"""The page and its pictures: whole by themselves, and harmless whatever the texts in them are."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from services.distiller.report.html import MOST_TEXT
from services.distiller.report.page import page
from services.distiller.report.plots import pictures
from services.distiller.spec import Spec

HOSTILE = '"><script>alert(1)</script><img src="http://evil.example/x"><!-- \' & '
PNG = b"\x89PNG\r\n"


class Seen(HTMLParser):
    """The tags and the attributes of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


def said(text: str, refused: bool) -> dict[str, Any]:
    return {"text": text, "refused": refused}


def report(arena: bool = True, refusals: bool = True, int8: Any = None, curve: bool = True) -> dict[str, Any]:
    """One with everything in it, or without some of it."""
    rating = {"elo": 812.0, "low": 700.0, "high": 905.0}
    pace = {"prefill": 900.0, "decode": 20.0, "weight_bytes": 1000, "peak_bytes": 0}
    adds = {"head": 10**6, "rest": 10**7, "attention": 10**5, "context": 128}
    pair = {
        "harmful": {"prompt": "How do I steal?", "teacher": said("No", True), "student": said("I can't help", True)},
        "harmless": {"prompt": "How do I lock?", "teacher": said("So", False), "student": said("So", False)},
    }
    found: dict[str, Any] = {
        "figures": {
            **dict.fromkeys(("kl", "kl_untrained", "top1", "top1_untrained", "saved_total"), 0.25),
            **dict.fromkeys(("perplexity", "perplexity_untrained", "perplexity_teacher", "speed_ratio"), 9.5),
            "held_out_tokens": 1000,
        },
        "teacher": "a/teacher",
        "student": "layers 0, 1 of 4",
        "multiply_adds_a_token": {"teacher": adds, "student": adds},
        "memory_bytes": {name: {"float32": 4 << 20} for name in ("teacher", "student")},
        "speed": {
            "models": {"teacher": pace, "student": pace},
            "prompt_tokens": 128,
            "dtype": "float32",
            "device": "cpu",
        },
        "arena": None,
        "refusals": [],
        "int8": int8,
        "curve": [{"step": 1, "losses": {"total": 2.0, "kl": 1.0}}, {"step": 2, "losses": {"total": None}}]
        if curve
        else [],
        "spec": Spec().model_dump(mode="json"),
    }
    if arena:
        found["arena"] = {
            "battles": 4,
            "answer_tokens": 64,
            "judge": "the judge",
            "teacher_elo": 1000.0,
            "ratings": {"student": rating, "untrained": rating},
            "win_rate": 0.2,
            "win_rate_untrained": 0.1,
            "swayed": 1,
            "unreadable": 0,
            "examples": [{"question": "Why?", "teacher": "So.", "student": "So so.", "score": 0.5}],
        }
        found["figures"] |= {"elo": 812.0, "elo_low": 700.0, "elo_high": 905.0, "elo_kept": 0.812}
        found["figures"] |= {"elo_untrained": 812.0, "win_rate": 0.2}
    if refusals:
        found["refusals"] = [pair]
        names = ("refused_harmful", "refused_harmless", "refused_harmful_teacher", "refused_harmless_teacher")
        found["figures"] |= dict.fromkeys(names, 0.5)
    return found


INT8 = {
    "kind": "w8a8",
    "kept": ["lm_head"],
    "steps": [{"repair": "none", "kl": 0.0412}, {"repair": "smooth", "kl": 0.02}],
}


def test_the_page_has_all_parts_and_needs_nothing_beside_itself() -> None:
    found = report(int8=INT8)
    drawn = pictures(found)
    assert list(drawn) == ["losses", "agreement", "elo", "refusals", "cost"]
    assert all(picture.startswith(PNG) for picture in drawn.values())
    text = page(found, drawn)
    assert len(text.encode()) < 2_000_000
    seen = Seen(text)
    assert not {"script", "link", "iframe", "object", "style"} & set(seen.tags) - {"style"}
    sources = [value for name, value in seen.attributes if name in ("src", "href", "srcset", "action")]
    assert len(sources) == 5
    assert all(str(value).startswith("data:image/png;base64,") for value in sources)
    assert "url(" not in text
    assert "@import" not in text
    assert seen.tags.count("img") == len([value for name, value in seen.attributes if name == "alt" and value])
    for words in ("812", "Arena", "Refusals", "In 8 bits", "0.0412", "training.learning_rate", "layers 0, 1 of 4"):
        assert words in seen.text


@pytest.mark.parametrize("missing", ["arena", "refusals", "curve"])
def test_what_was_not_measured_is_not_shown(missing: str) -> None:
    found = report(**{missing: False})
    drawn = pictures(found)
    words, picture = {"arena": ("Arena", "elo"), "refusals": ("Refusals", "refusals"), "curve": ("<h1><h1>", "losses")}[
        missing
    ]
    assert picture not in drawn
    assert words not in page(found, drawn)


def test_hostile_texts_stay_texts_wherever_they_come_from() -> None:
    def poisoned(value: Any) -> Any:
        if isinstance(value, str):
            return HOSTILE + value
        if isinstance(value, dict):
            return {key: poisoned(one) for key, one in value.items()}
        if isinstance(value, list):
            return [poisoned(one) for one in value]
        return value

    found = report(int8=INT8)
    honest = Seen(page(found, {}))
    hostile = {**found, "int8": {**INT8, HOSTILE: HOSTILE, "rows": [{HOSTILE: HOSTILE}]}}
    for key in ("teacher", "student", "arena", "refusals", "spec"):
        hostile[key] = poisoned(found[key])
    hostile["speed"] = {**found["speed"], "device": HOSTILE, "dtype": HOSTILE}
    seen = Seen(page(hostile, {}))
    assert set(seen.tags) == set(honest.tags)
    assert {name for name, _ in seen.attributes} == {name for name, _ in honest.attributes}
    assert "<script>alert(1)</script>" in seen.text


def test_long_texts_are_cut() -> None:
    found = report()
    found["arena"]["examples"] = [
        {"question": "q" * 100_000, "teacher": "t" * 100_000, "student": "s" * 100_000, "score": 1.0}
    ]
    text = page(found, {})
    assert "q" * MOST_TEXT + "…" in text
    assert len(text) < 50_000
