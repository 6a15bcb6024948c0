"""The driver's and the servers' errors in our words."""

from __future__ import annotations

from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import TimeoutError as TimedOut

from taskmq.errors import ConfigError, StoreFull, TransportError, TransportUnavailable

_MEANINGS: tuple[tuple[str, type[TransportError] | type[ConfigError], str], ...] = (
    ("OOM", StoreFull, "has no memory left (maxmemory): nothing was stored; give it more or let tasks drain"),
    ("command not allowed when used memory", StoreFull, "has no memory left (maxmemory): nothing was stored"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        ConfigError,
        "shows a certificate that is not trusted: name the authority that signed it, ?ssl_ca_certs=FILE",
    ),
    ("WRONGPASS", ConfigError, "refuses the user name or password of the URL"),
    ("invalid username-password", ConfigError, "refuses the user name or password of the URL"),
    ("invalid password", ConfigError, "refuses the password of the URL"),
    ("NOAUTH", ConfigError, "asks for a password: write it into the URL, redis://:password@host"),
    ("Authentication required", ConfigError, "asks for a password: write it into the URL, redis://:password@host"),
    (
        "the 'evalsha' command",
        ConfigError,
        "does not let this user run scripts: permit it (ACL SETUSER … +@scripting), or add ?lua=off to the URL",
    ),
    ("unknown command 'EVALSHA'", ConfigError, "does not know scripts: add ?lua=off to the URL"),
    ("NOPERM", ConfigError, "does not let this user do what taskmq needs; see its ACL"),
    ("can't run this command", ConfigError, "does not let this user do what taskmq needs; see its ACL"),
    ("can't access at least one of the keys", ConfigError, "does not let this user touch taskmq's keys; see its ACL"),
    ("no permissions", ConfigError, "does not let this user do what taskmq needs; see its ACL"),
    ("READONLY", TransportError, "is a read-only replica: give the URL of its primary"),
    ("read only replica", TransportError, "is a read-only replica: give the URL of its primary"),
    ("MISCONF", TransportError, "cannot save to its disk and therefore takes no writes"),
    ("LOADING", TransportUnavailable, "is loading its data; try again soon"),
    ("BUSY", TransportUnavailable, "is busy with somebody's long script; try again soon"),
    ("MOVED", ConfigError, "is a node of a cluster: add ?cluster=1 to the URL"),
    ("in a cluster node", ConfigError, "is a node of a cluster: add ?cluster=1 to the URL"),
    ("CROSSSLOT", TransportError, "was given keys of several slots in one command; this is a bug of taskmq"),
    ("TRYAGAIN", TransportUnavailable, "is moving this queue's slot to another node; try again soon"),
    (
        "CLUSTERDOWN",
        TransportUnavailable,
        "is a node of a cluster that is not in order: some slots have no master; if the URL does not, add ?cluster=1",
    ),
    ("MASTERDOWN", TransportUnavailable, "has lost its primary"),
    ("max number of clients", TransportUnavailable, "has as many clients as it takes (maxclients)"),
    ("DB index is out of range", ConfigError, "has no database of that number"),
    ("unknown command", TransportError, "does not know a command that taskmq needs"),
)


def error_for(shown: str, error: Exception) -> Exception:
    """The driver's error in our words, with the server's own behind them."""
    if not isinstance(error, (RedisError, OSError)):
        return error
    said = str(error)
    for sign, kind, words in _MEANINGS:
        if sign in said or type(error).__name__.upper().startswith(sign):
            mapped: Exception = kind(f"{shown} {words} ({said})")
            break
    else:
        if isinstance(error, AuthenticationError):
            mapped = ConfigError(f"{shown} refuses the user name or password of the URL ({said})")
        elif isinstance(error, (ConnectionLost, TimedOut, OSError)):
            mapped = TransportUnavailable(f"{shown} cannot be reached: {said}")
        else:
            mapped = TransportError(f"{shown}: {said}")
    mapped.__cause__ = error
    return mapped
