"""The page and its pictures: whole by themselves, and harmless whatever the texts in them are."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from services.common.int8.notes import Notes, Step
from services.distiller.report.html import MOST_TEXT, times
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


def report(arena: int = 32, refusals: bool = True, int8: Any = None, curve: bool = True) -> dict[str, Any]:
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
            **dict.fromkeys(("perplexity", "perplexity_untrained", "perplexity_teacher"), 9.5),
            "speed_ratio": 1.634,
            "speed_ratio_low": 1.512,
            "speed_ratio_high": 1.8,
            "held_out_tokens": 1000,
            "held_out_records": 20,
        },
        "teacher": "a/teacher",
        "student": "layers 0, 1 of 4",
        "multiply_adds_a_token": {"teacher": adds, "student": adds},
        "memory_bytes": {name: {"float32": 4 << 20} for name in ("teacher", "student")},
        "speed": {
            "models": {"teacher": pace, "student": pace},
            "prompt_tokens": 128,
            "rounds": 5,
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
            "battles": arena,
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
        found["figures"] |= {"elo_untrained": 812.0, "win_rate": 0.2, "battles": arena}
    if refusals:
        found["refusals"] = [pair]
        names = ("refused_harmful", "refused_harmless", "refused_harmful_teacher", "refused_harmless_teacher")
        found["figures"] |= dict.fromkeys(names, 0.5)
    return found


INT8 = Notes(
    kind="w8a8",
    layers=("up_proj",),
    kept=("lm_head", "down_proj"),
    steps=(Step(step="quantised", kl=0.0412), Step(step="smooth", kl=0.02, said="it helped")),
    kl_before=0.0412,
    kl=0.02,
    bytes_before=1000,
    bytes_after=310,
    dialogues=80,
    measured_dialogues=20,
    measured_tokens=1000,
).model_dump(mode="json")


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
    found = report(**{missing: 0})  # type: ignore[arg-type]
    drawn = pictures(found)
    words, picture = {"arena": ("Arena", "elo"), "refusals": ("Refusals", "refusals"), "curve": ("<h1><h1>", "losses")}[
        missing
    ]
    assert picture not in drawn
    assert words not in page(found, drawn)


def sentences(found: dict[str, Any]) -> str:
    return page(found, {}).partition("<ul>")[2].partition("</ul>")[0]


def test_the_first_sentences_say_how_much_they_are_of() -> None:
    found = report(int8=INT8)
    said = sentences(found)
    assert "writes 1.6 times as many tokens a second on this machine (between 1.5 and 1.8 in 5 rounds)." in said
    assert (
        "Its Elo is 812 (between 700 and 905) against the teacher&#x27;s 1000, of 32 battles; before training" in said
    )
    assert (
        "In 8 bits it has 31.0 % of the bytes, and a KL of 0.02 nats a token to what it was before; it may serve."
        in said
    )
    assert "only" not in said


def test_ratios_have_two_digits() -> None:
    assert [times(ratio) for ratio in (0.994, 1.0, 1.634, 9.99, 12.4, 140.2)] == [
        "0.99",
        "1.0",
        "1.6",
        "10",
        "12",
        "140",
    ]


def test_what_is_of_too_little_says_so_in_plain_words() -> None:
    found = report(arena=9, int8={**INT8, "measured_tokens": 47, "measured_dialogues": 3})
    found["figures"] |= {"held_out_tokens": 999}
    said = sentences(found)
    assert "of 9 battles; before training it was 812: too few battles to tell." in said
    assert "between 700" not in said
    assert "of all places (before: 25.0 %), of 999 tokens of 20 records only." in said
    assert "to what it was before, of 47 tokens of 3 records only; it may serve." in said
    found["figures"] |= {"held_out_tokens": 5000, "held_out_records": 19}
    assert "of 5,000 tokens of 19 records only." in sentences(found)


def test_without_a_step_there_is_no_before_and_after() -> None:
    found = report()
    found["spec"]["training"]["steps"] = 0
    said = sentences(found)
    assert "It was not trained: its KL to the teacher is 0.25 nats a token" in said
    assert "before" not in said
    assert "from" not in said


def test_the_form_in_8_bits_is_told_in_words() -> None:
    text = Seen(page(report(int8={**INT8, "publish": False, "why": "it lost too much"}), {})).text
    for words in (
        "weights and activations",
        "layers kept2",
        "before repair0.0412",
        "it lost too much",
        "what it means",
    ):
        assert words in text
    assert "down_proj" not in text


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
    hostile = {**found}
    for key in ("teacher", "student", "arena", "refusals", "spec", "int8"):
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
