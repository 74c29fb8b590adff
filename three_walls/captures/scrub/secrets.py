"""What must not survive: values of variables, dropped arguments, paths, names of people and machines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from three_walls.captures.scrub.traits import FEW_BYTES, homes_in, is_common_word, looks_random
from three_walls.inputs.config.environment import unquote
from three_walls.inputs.nsys.export import NsysExport
from three_walls.inputs.nsys.recorded_environment import launch_environment, other_environments
from three_walls.tables.environment_variables import allowed_variables
from three_walls.tables.scrub import holds_key

_OWNERS = frozenset({"USER", "LOGNAME", "USERNAME", "SUDO_USER"})
_HOSTS = frozenset({"HOSTNAME", "HOST", "NAME", "SLURMD_NODENAME", "SLURM_NODELIST", "SLURM_JOB_NODELIST"})
_IDENTITY_KEYS = ("USER_NAME", "EXPORT_USER", "EXPORT_HOST", "DEVICE_DISPLAY_NAME", "Hostname")
_PATH_KEYS = ("WORKING_DIR", "TargetInstallDir", "InjectionFilesStoragePath", "_PATH_ABS")
_NOBODY = frozenset({"root", "user", "local", "localhost"})


@dataclass(slots=True)
class Secrets:
    """Values to keep out. ``strict`` ones may occur nowhere; ``loose`` ones only inside of texts that are kept anyway
    (a project called "attention" does not make the kernels' names a leak). ``identities`` are removed as whole words.
    """

    strict: set[str] = field(default_factory=set)
    loose: set[str] = field(default_factory=set)
    identities: set[str] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)
    """Names of the variables that are left out, for the summary."""

    def add_value(self, value: str, is_secret: bool = False) -> None:
        """A removed value; one that others share by chance is not looked for."""
        value = value.strip()
        for home, owner in homes_in(value):
            self._add(home, self.strict)
            self.add_identity(owner)
        if is_common_word(value):
            return
        is_strict = is_secret or holds_key(value) or looks_random(value) or "/" in value or "@" in value
        self._add(value, self.strict if is_strict else self.loose)

    def add_identity(self, name: str) -> None:
        """The name of a person or a machine."""
        if len(name) >= 2 and name.lower() not in _NOBODY:
            self.identities.add(name)

    def add_variables(self, rows: Iterable[str], are_kept: bool) -> None:
        """Variables of an environment; with ``are_kept`` those that may be shown are no secrets."""
        allowed = allowed_variables()
        for row in rows:
            name, separator, quoted = row.partition("=")
            value = unquote(quoted)
            if not separator or allowed.shows(name, value):
                continue
            if are_kept or not allowed.allows(name):
                self.variables.add(name)
            if name in _OWNERS or name in _HOSTS:
                self.add_identity(value)
            self.add_value(value, is_secret=allowed.looks_secret(name))

    def is_in(self, text: str) -> bool:
        """Whether ``text`` holds something that may occur nowhere, or names somebody."""
        return any(value in text for value in self.strict) or self.names_somebody(text)

    def names_somebody(self, text: str) -> bool:
        return any(
            name in text and re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", text)
            for name in self.identities
        )

    def _add(self, value: str, to: set[str]) -> None:
        if len(value.encode("utf-8", "replace")) >= FEW_BYTES:
            to.add(value)


def find_secrets(export: NsysExport) -> Secrets:
    """Everything in ``export`` that tells of people and machines, but for the launched command line."""
    secrets = Secrets()
    secrets.add_variables(launch_environment(export), are_kept=True)
    secrets.add_variables(other_environments(export), are_kept=False)
    for table in ("META_DATA_CAPTURE", "META_DATA_EXPORT", "TARGET_INFO_SYSTEM_ENV"):
        for name, value in export.pairs(table):
            if name.endswith(_IDENTITY_KEYS):
                secrets.add_identity(value)
            elif name.endswith(_PATH_KEYS):
                secrets.add_value(value)
    return secrets
