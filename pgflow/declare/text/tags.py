"""Values between tags: nothing in a value can end the tag around it, or begin another.

Prompts put words of people and agents between tags (``<user-input>``), so that a model knows whose
words they are. A value with such a tag of its own could pass for the words of another. So the
bracket of each tag that these prompts use is written as ``&lt;`` there, and everything else, code
and HTML included, stays as it is.
"""

from __future__ import annotations

import re
from typing import Final

TAGS: Final = (
    "agent-sop", "content", "parameter", "previous-step", "user-input", "talk", "you-said",
    "user-said", "sop-said", "sop-failed", "ask-user", "run-sop",
)  # fmt: skip

_TAG: Final = re.compile(rf"<(?=\s*/?\s*(?:{'|'.join(TAGS)})(?![\w-]))", re.IGNORECASE)


def without_tags(value: str) -> str:
    """Return a value that neither ends nor begins a tag of a prompt.

    Args:
        value: Untrusted words.
    """
    return _TAG.sub("&lt;", value)


def tagged(tag: str, value: str, **attributes: str) -> str:
    """Words between tags, on lines of their own.

    Args:
        tag: Name of the tag.
        value: The words.
        **attributes: Attributes of the opening tag.
    """
    listed = "".join(f' {name}="{attribute(text)}"' for name, text in attributes.items())
    return f"<{tag}{listed}>\n{without_tags(value)}\n</{tag}>"


def attribute(text: str) -> str:
    """Return a text as the content of a quoted attribute."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
