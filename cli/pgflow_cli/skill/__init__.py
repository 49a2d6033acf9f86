"""``pgflow install-skill``: what a coding assistant should know of pgflow,
put where assistants look.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from pgflow.console.output import plain, print_one
from pgflow_cli.look.failures import Mistake, opening
from pgflow_cli.look.options import AnswerForm

OURS = "---\nname: pgflow\n"
"""Beginning of the file, in every version of it."""


def install_skill(*, to: Path = Path(".agents/skills"), form: AnswerForm) -> None:
    """Writes the skill for coding assistants, or renews it.

    Args:
        to: Folder of skills; pgflow/SKILL.md is written into it.
    """
    target = to / "pgflow" / "SKILL.md"
    text = resources.files("pgflow_cli.skill").joinpath("SKILL.md").read_text(encoding="utf-8")
    changed = _write(target, text)
    words = f"Wrote {target}" if changed else f"{target} is up to date"
    print_one(form, {"file": str(target), "changed": changed}, lambda: plain(words))


def _write(target: Path, text: str) -> bool:
    """Write the file unless it has this text already; return True if it was written."""
    with opening(target, "written"):
        before = target.read_text(encoding="utf-8") if target.exists() else OURS
        if not before.startswith(OURS):
            raise Mistake(
                f"{target} was not written by pgflow, so nothing was changed. Move it away, or "
                "name another folder with --to"
            )
        if before == text:
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return True
