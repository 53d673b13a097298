"""Addresses of servers as people may see them."""

import re

PORT = r"\d{1,5}[/?#]"
NAME = r"(?:(?<=://)|(?![^:\s]*:/))[^/?#\s:@\[]*"
SECRET = re.compile(rf"(://|^)(?:[^/?#\s]*@|{NAME}:(?!{PORT})\S*@)")
"""NAME:PASSWORD@, whose password may hold a / where no port can be meant."""


def without_password(text: str, mark: str = "***@") -> str:
    """A text whose addresses have `mark` where they hold a user's name and password."""
    return SECRET.sub(rf"\g<1>{mark}", text)
