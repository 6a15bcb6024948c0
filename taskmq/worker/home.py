"""Where a child process finds the app: by import, as the worker's own process did.

A child is a fresh interpreter. It must import the same handlers, so the app has to stand at the top level of a module:
``shop.tasks:app``. Which module that is, ``taskmq worker shop.tasks:app`` is told; an embedded worker looks for it in
the modules of its handlers. A program that is run as a script is imported by its children under the name it would have
as a module (``python shop.py``: ``shop``), which is also what its handlers are named after. So the line that starts the
worker must stand below ``if __name__ == "__main__"``, or each child would start a worker of its own; that is refused.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from taskmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskmq.app import App

_inside = False


class Home(msgspec.Struct, array_like=True):
    """What to import.

    ``app``      module and attribute
    ``modules``  further modules, which register handlers
    ``script``   name and path of the program, if any of these is the program itself
    """

    app: tuple[str, str]
    modules: list[str]
    script: tuple[str, str] | None = None


# ── in the worker's process ──


def find_home(app: App, place: str | None) -> Home:
    """Where children find this app; ``place``: ``module:attribute``, if it is known.

    Raises ConfigError, with the way out, when no module has it.
    """
    modules = list(dict.fromkeys(task.function.__module__ for task in app.handlers.values()))
    where = _split(place) if place is not None else _search(app, modules)
    if where is None:
        raise ConfigError(
            "pool processes: its child processes import the app, and no module has this one. Assign it at the top "
            "level of a module, app = App(…), or say where it is: import_as='shop.tasks:app'"
        )
    names = [where[0], *modules]
    script = _script() if "__main__" in names else None
    real = dict.fromkeys(script[0] if script and name == "__main__" else name for name in names)
    module, *others = real
    return Home((module, where[1]), others, script if script and script[1] else None)


def refuse_inside() -> None:
    """Raise ConfigError in a child process: the worker's program runs its worker wherever it is imported."""
    if _inside:
        raise ConfigError(
            "a child process of the pool imported this program, and the program started a worker at once: "
            'start it below if __name__ == "__main__":'
        )


def _split(place: str) -> tuple[str, str]:
    module, _, attribute = place.partition(":")
    return module, attribute or "app"


def _search(app: App, modules: Iterable[str]) -> tuple[str, str] | None:
    """A module's attribute that is this app: in the modules of its handlers, or wherever it was imported from."""
    for name in (*modules, *list(sys.modules)):
        for attribute, value in list(getattr(sys.modules.get(name), "__dict__", {}).items()):
            if value is app:
                return name, attribute
    return None


def _script() -> tuple[str, str]:
    """The program's name as a module, and its path; the path is empty when the name can be imported."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m
        return str(spec.name), ""
    file = getattr(main, "__file__", None)
    if file is None or not Path(file).is_file():
        raise ConfigError(
            "pool processes: its child processes import the app, and this one was typed in or came from a pipe; "
            "put it into a file"
        )
    return Path(file).stem, str(Path(file).resolve())


# ── in the child process ──


def open_home(home: Home) -> App:
    """Import everything and answer the app. What the modules raise gets out as it is; ConfigError if it is no app."""
    global _inside
    _inside = True
    if home.script is not None:
        _import_script(*home.script)
    module, attribute = home.app
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part, None)
    for other in home.modules:
        importlib.import_module(other)
    from taskmq.app import App

    if not isinstance(found, App):
        raise ConfigError(f"{module}:{attribute} is {found!r} in a child process, and not an App")
    return found


def _import_script(name: str, path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be imported as a module; its name should end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


__all__ = ["Home", "find_home", "open_home", "refuse_inside"]
