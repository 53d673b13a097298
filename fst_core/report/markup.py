"""HTML building blocks that escape everything: only what `tag` built is ever taken as markup."""

import html
from collections.abc import Sequence
from typing import Any

_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n\r"}
_SURROGATES = dict.fromkeys(range(0xD800, 0xE000), 0xFFFD)
_BIDI = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)
_HARMLESS = str.maketrans({**_CONTROLS, **_SURROGATES, **_BIDI, 0x7F: 0x2421})


class Markup(str):
    """Text that is already HTML."""

    __slots__ = ()


def esc(value: Any) -> Markup:
    """A value as HTML text: markup as it is, anything else escaped, control characters shown."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(str(value).translate(_HARMLESS)))


def join(*parts: Any) -> Markup:
    """Parts one after another, each escaped unless it is markup."""
    return Markup("".join(esc(part) for part in parts))


def tag(name: str, *children: Any, **attributes: Any) -> Markup:
    """An element; a trailing underscore in an attribute name is dropped (`class_`)."""
    written = "".join(f' {key.rstrip("_")}="{esc(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def number_text(value: float | None, digits: int = 3) -> str:
    """A number for reading: thousands separated, `digits` decimals below 100, – for None."""
    if value is None or value != value:
        return "–"
    if digits == 0 or abs(value) >= 1000:
        return f"{value:z,.0f}"
    return f"{value:z.{min(digits, 1) if abs(value) >= 100 else digits}f}"


def table(
    headers: Sequence[Any], rows: Sequence[Sequence[Any]], marked: Sequence[bool] = ()
) -> Markup:
    """A table in a box that scrolls sideways; row i is highlighted where `marked[i]`."""
    head = tag("tr", *(tag("th", header, scope="col") for header in headers))
    flags = [*marked, *[False] * (len(rows) - len(marked))]
    body = [
        tag("tr", *(tag("td", cell) for cell in row), **({"class_": "marked"} if flag else {}))
        for row, flag in zip(rows, flags, strict=True)
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll")


def details(summary: Any, *children: Any, open_: bool = False) -> Markup:
    """A part that the reader opens and closes."""
    attributes = {"open": "open"} if open_ else {}
    return tag("details", tag("summary", summary), *children, **attributes)
