"""Which app, and which store, a command works on.

An app goes before a URL, wherever each is named, because it is what the workers run: it knows its store and its
namespace. Only ``--url`` overrules it. Of several places the nearest wins: the command line, the environment, then
``[tool.taskmq]`` in ./pyproject.toml.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import click

from taskmq.cli.exits import set_debug
from taskmq.errors import ConfigError

if TYPE_CHECKING:
    from taskmq.app import App
    from taskmq.transport.base import Store

_HOW = "give --app module:name, set TASKMQ_APP, or set app in [tool.taskmq] of ./pyproject.toml"

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Target(NamedTuple):
    """What a command works on: an app as ``module:name``, or a URL with a namespace, or neither."""

    app: str | None = None
    url: str | None = None
    namespace: str | None = None


def target_options(command: _Command) -> _Command:
    """Add ``--app``, ``--url``, ``--namespace`` and ``--debug``; the command gets what they lead to as ``target``.

    An argument ``module_app`` of the command is another way to name the app.
    """

    @wraps(command)
    def with_target(*args: Any, app: str | None, url: str | None, namespace: str | None, **kwargs: Any) -> Any:
        argument = kwargs.pop("module_app", None)
        if argument and app:
            raise click.UsageError("the app is given twice, as the argument and as --app")
        return command(*args, target=find_target(Target(argument or app, url, namespace)), **kwargs)

    told = click.option("--namespace", metavar="NAME", help="The namespace in the store. [default]")(with_target)
    told = click.option("--url", metavar="URL", help="The store alone, without an app. [TASKMQ_URL]")(told)
    return cast(_Command, app_option(told))


def app_option(command: _Command) -> _Command:
    """Add ``--app`` and ``--debug`` to a command."""
    command = click.option("--debug", is_flag=True, expose_value=False, callback=set_debug, hidden=True)(command)
    return click.option("--app", metavar="MODULE:NAME", help="The app. [TASKMQ_APP]")(command)


def find_target(given: Target) -> Target:
    """The app or URL to work on, by the rule above; raises ConfigError for a broken pyproject, UsageError for both."""
    if given.app and given.url:
        raise click.UsageError("give --app or --url: an app brings its own store")
    if given.url:
        return given
    environment = _from_environment()
    project = _from_pyproject()
    app = given.app or environment.app or project.app
    if app and given.namespace:
        raise click.UsageError(f"--namespace goes with --url: the app {app} brings its own")
    return Target(app) if app else Target(None, environment.url or project.url, given.namespace)


def find_app(app: str | None) -> str:
    """The app; raises ConfigError when no place names one."""
    found = app or _from_environment().app or _from_pyproject().app
    if not found:
        raise ConfigError(f"no app to work for: {_HOW}")
    return found


def _from_environment() -> Target:
    from taskmq.config import refuse_misspelled_environment

    refuse_misspelled_environment()
    return Target(os.environ.get("TASKMQ_APP"), os.environ.get("TASKMQ_URL"))


def _from_pyproject() -> Target:
    """App and URL of ``[tool.taskmq]``, as far as they are there."""
    path = Path("pyproject.toml")
    if not path.is_file():
        return Target()
    import tomllib

    try:
        section = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("taskmq", {})
        app, url = section.get("app"), section.get("url")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, AttributeError) as error:
        raise ConfigError(f"{path.resolve()} cannot be read: {error}") from error
    unknown = sorted(section.keys() - {"app", "url"})
    if unknown:
        raise ConfigError(f"[tool.taskmq] in {path.resolve()} has {unknown[0]!r}, which means nothing; known: app, url")
    for name, value in (("app", app), ("url", url)):
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"[tool.taskmq] {name} in {path.resolve()} must be text, not {value!r}")
    return Target(app, url)


def load_app(spec: str) -> App:
    """Import the app ``module:name`` (name: ``app`` by default), with the working directory on the path.

    Raises ConfigError when there is no such module, its import fails, or what it names is no App.
    """
    module_name, _, attribute = spec.partition(":")
    module = _import(module_name, spec)
    found: Any = module
    for part in (attribute or "app").split("."):
        found = getattr(found, part, None)
    from taskmq.app import App

    if isinstance(found, App):
        return found
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    there = f"; it has {', '.join(f'{module_name}:{name}' for name in apps)}" if apps else " nor any other App"
    raise ConfigError(f"module {module_name} has no App named {attribute or 'app'!r}{there}")


def _import(name: str, spec: str) -> Any:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"{spec!r} does not name an app: write module:name, e.g. shop.tasks:app")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"no module {error.name!r} for the app {spec!r}, neither in {here} nor installed"
            ) from error
        raise _import_failed(name, error) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: BaseException) -> ConfigError:
    return ConfigError(
        f"the app's module {name} fails to import: {type(error).__name__}: {error} (--debug shows where)"
    )


@contextmanager
def opened_store(target: Target) -> Iterator[Store]:
    """The store of the target, for a command that only looks at it or steers it; closed at the end.

    Raises ConfigError instead of making a new, empty default database, which would answer every question with nothing.
    """
    refuse_nothing(target)
    with closing(open_app(target)) as app:
        yield app.store


def refuse_nothing(target: Target) -> None:
    """Raise ConfigError where the target is the default database and there is none."""
    if target.app is None and target.url is None and not Path("taskmq.db").exists():
        raise ConfigError(f"no store to look at: there is no taskmq.db in {Path.cwd()}; give --url, or {_HOW}")


def open_app(target: Target) -> App:
    """The app of the target, or one without handlers for its URL (or the default one)."""
    if target.app is not None:
        return load_app(target.app)
    from taskmq.app import App
    from taskmq.config import DEFAULT_URL, Config

    return App(Config(url=target.url or DEFAULT_URL, namespace=target.namespace or "default"))
