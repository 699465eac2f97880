"""What may be shown: one line, nothing invisible."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests.visible import visible, visible_lines


@given(st.text())
def test_clean_text_is_one_line_without_control_bidi_or_invisible_characters(dirty):
    cleaned = visible(dirty)

    assert not {unicodedata.category(char) for char in cleaned} & {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    assert cleaned == " ".join(cleaned.split())
    assert visible(cleaned) == cleaned


@pytest.mark.parametrize(
    ("dirty", "cleaned"),
    [
        ("a\x1b[31mb", "a[31mb"),
        ("a\u202eb\u2066c", "abc"),
        ("a\u200bb\ufeffc\u00add", "abcd"),
        ("a\nb\u2028c\td", "a b c d"),
        ("x\ufe0f\U000e0041y\u3164z", "xyz"),
        ("Fang DONG(董方) τ² ≠ é：", "Fang DONG(董方) τ² ≠ é："),
        ("a\ud800b", "ab"),
        (" \u200b ", ""),
        ("a\u180bb\u2065\ufff0c", "abc"),
    ],
)
def test_cleaning_keeps_what_shows(dirty, cleaned):
    assert visible(dirty) == cleaned


def test_lines_for_a_terminal_keep_their_ends_and_spaces_and_nothing_that_moves_its_cursor():
    assert visible_lines("found:\n  - a\x1b[2J\u202e  b\r\n\tc\x9b") == "found:\n  - a[2J  b\nc"
