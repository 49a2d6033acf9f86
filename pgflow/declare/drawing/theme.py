"""The colours of pictures, by the kind of work of a node, on light and on dark ground.

Ground, line and text of each are chosen together: a text has a contrast of at least 4.5 : 1 to its
background. The light colours are plain rules and the dark ones are in a media query, so that
programs that do not know the query (converters to PNG and PDF) show the light picture.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tone:
    """Colours that belong together."""

    fill: str
    line: str
    text: str


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of work or of mark, on both grounds."""

    light: Tone
    dark: Tone


FAMILIES = {
    "agent": Family(Tone("#eef4ff", "#4c7fdb", "#1f4fa3"), Tone("#14233d", "#5b8def", "#a9c7ff")),
    "code": Family(Tone("#eef6f3", "#4b9a82", "#1d6350"), Tone("#112a24", "#4fae93", "#97dcc6")),
    "loop": Family(Tone("#f5f0ff", "#8b67d6", "#5d37a8"), Tone("#231a3a", "#9d7df0", "#cdb9ff")),
    "person": Family(Tone("#fff6e5", "#c98a1b", "#7d5200"), Tone("#2f2410", "#d9a441", "#f3d08a")),
    "stop": Family(Tone("#fff0f0", "#d0575c", "#9c2328"), Tone("#361719", "#e5767b", "#ffb3b5")),
    "call": Family(Tone("#ecf6fa", "#3a8fae", "#15607a"), Tone("#0f2932", "#4aa8c9", "#9bdcf2")),
    "plain": Family(Tone("#f4f5f7", "#c3c8d0", "#4a5260"), Tone("#22272f", "#4b5462", "#b9c2cf")),
}

_FAMILY_OF = {
    "prompt": "agent", "command": "agent", "bash": "code", "script": "code", "loop": "loop",
    "loop_group": "loop", "approval": "person", "cancel": "stop", "workflow": "call",
    "wait": "plain",
    "gate": "person", "effect": "stop", "rule": "plain", "end": "code",
}  # fmt: skip

SANS = "'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', sans-serif"
MONO = (
    "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', "
    "'Liberation Mono', monospace"
)

_ROOT = ".pgflow-graph"
"""Every rule begins with it: an SVG inside a page must not restyle the page."""

_LIGHT = {"ground": "#ffffff", "ink": "#1b2230", "soft": "#5a6372", "line": "#8a94a3"}
_DARK = {"ground": "#0e1218", "ink": "#e9edf3", "soft": "#a3adbb", "line": "#7d8898"}


def family_of(kind: str) -> str:
    """Return the family of colours of a mode or a mark."""
    return _FAMILY_OF[kind]


def style_sheet() -> str:
    """Return the rules of a picture."""
    dark = "".join(_rules(_DARK, is_dark=True))
    return "".join(
        [
            *_type(),
            *_rules(_LIGHT, is_dark=False),
            f"@media (prefers-color-scheme: dark) {{\n{dark}}}\n",
        ]
    )


_OUTLINES = {
    "waiting": "stroke-dasharray: 2 4", "skipped": "stroke-dasharray: 2 4",
    "running": "stroke-width: 3", "asks": "stroke-width: 3", "failed": "stroke-width: 3",
}  # fmt: skip
_STANDS = {"running": "agent", "asks": "person", "completed": "code", "failed": "stop"}
"""Families of colours for states of nodes. Other states have the colour of soft text."""


def _type() -> list[str]:
    """Return the style rules that are the same on both grounds."""
    return [
        f"{_ROOT} text {{ font-family: {SANS}; }}\n",
        f"{_ROOT} .code {{ font-family: {MONO}; }}\n",
        f"{_ROOT} .box {{ stroke-width: 1.5; }}\n",
        f"{_ROOT} .group {{ stroke-width: 1.5; stroke-dasharray: 6 4; }}\n",
        f"{_ROOT} .edge {{ fill: none; stroke-width: 1.5; stroke-linejoin: round; }}\n",
        (
            f"{_ROOT} .icon {{ fill: none; stroke-width: 1.4; "
            "stroke-linecap: round; stroke-linejoin: round; }\n"
        ),
        *(
            f"{_ROOT} .is-{name} .box, {_ROOT} .is-{name} .group {{ {rule}; }}\n"
            for name, rule in _OUTLINES.items()
        ),
    ]


def _rules(colours: dict[str, str], *, is_dark: bool) -> list[str]:
    rules = [
        f"{_ROOT} .ground {{ fill: {colours['ground']}; }}\n",
        f"{_ROOT} .ink {{ fill: {colours['ink']}; }}\n",
        f"{_ROOT} .soft {{ fill: {colours['soft']}; }}\n",
        f"{_ROOT} .edge {{ stroke: {colours['line']}; }}\n",
        f"{_ROOT} .tip {{ fill: {colours['line']}; }}\n",
        f"{_ROOT} .state {{ fill: {colours['soft']}; }}\n",
    ]
    for name, family in FAMILIES.items():
        tone = family.dark if is_dark else family.light
        rules += [
            (
                f"{_ROOT} .{name} .box, {_ROOT} .{name}.chip rect {{ fill: {tone.fill}; stroke: "
                f"{tone.line}; }}\n"
            ),
            (
                f"{_ROOT} .{name} .group {{ fill: {tone.line}; fill-opacity: 0.07; stroke: "
                f"{tone.line}; }}\n"
            ),
            f"{_ROOT} .{name} .mode, {_ROOT} .{name}.chip text {{ fill: {tone.text}; }}\n",
            f"{_ROOT} .{name} .icon {{ stroke: {tone.text}; }}\n",
        ]
    for name, kind in _STANDS.items():
        tone = FAMILIES[kind].dark if is_dark else FAMILIES[kind].light
        rules += [
            f"{_ROOT} .is-{name} .state {{ fill: {tone.text}; }}\n",
            f"{_ROOT} .is-{name} .box, {_ROOT} .is-{name} .group {{ stroke: {tone.line}; }}\n",
        ]
    return rules
