"""Surroundings of a run's stages: their workspace, its folder, and who works for them."""

from __future__ import annotations

from dataclasses import dataclass

from pgflow.declare.durable.folders import Folders
from pgflow.declare.durable.frozen import Settings, Workspace
from pgflow.declare.durable.stages.files import Tree
from pgflow.declare.durable.stages.mail import Mail
from pgflow.declare.durable.works import Works


@dataclass(frozen=True, slots=True)
class Context:
    """Surroundings of the stages of a run.

    Args:
        workspace: Files of the stages.
        settings: Settings of the run.
        tree: The folder that it works in.
        folders: Its own folders.
        works: Does its turns.
        mail: Its messages.
    """

    workspace: Workspace
    settings: Settings
    tree: Tree
    folders: Folders
    works: Works
    mail: Mail
