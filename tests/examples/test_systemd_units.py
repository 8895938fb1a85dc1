"""The unit files for a machine without Nix: what an operator copies starts in order, and reaches one directory."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from agentstate.cli.main import COMMANDS
from builders import ROOT
from unit_files import complaints, needs_systemd, parsed

FOLDER = ROOT / "examples" / "systemd"
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.iterdir())}
UNITS = {name: parsed(text) for name, text in TEXTS.items()}

SERVICES = [name for name in UNITS if name.endswith(".service")]
ROLES = ["worker", "builder"]
UPGRADE = ["agentstate-upgrade.service"]

CONFINED = {
    "Type": ["oneshot"],
    "User": ["agentstate"],
    "Group": ["agentstate"],
    "UMask": ["0077"],
    "StateDirectoryMode": ["0700"],
    "NoNewPrivileges": ["yes"],
    "PrivateTmp": ["yes"],
    "ProtectSystem": ["strict"],
    "KillSignal": ["SIGTERM"],
    "KillMode": ["mixed"],
    "TimeoutStopSec": ["90s"],
}


def words(unit: str, setting: str) -> list[str]:
    """Return the words of a service's setting, whatever number of lines they are on."""
    return " ".join(UNITS[unit]["Service"].get(setting, [])).split()


def test_there_is_a_unit_for_everything_that_runs() -> None:
    """The names are what operators type into systemctl."""
    services = ("backup", "builder", "maintain", "upgrade", "worker")

    assert {f"agentstate-{name}.service" for name in services} == set(SERVICES)
    assert set(UNITS) - set(SERVICES) == {
        "agentstate-backup.timer",
        "agentstate-builder.path",
        "agentstate-maintain.timer",
        "agentstate-worker.path",
    }


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_is_confined(service: str) -> None:
    """Agents run other people's text: what they can reach and who can read their files is decided here."""
    settings = UNITS[service]["Service"]

    assert {name: settings.get(name) for name in CONFINED} == CONFINED


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_finds_the_same_database_in_a_directory_that_it_may_write(service: str) -> None:
    """FS-03: a service whose sandbox leaves out the directory fails at its first statement."""
    paths = [value for value in words(service, "Environment") if value.startswith("AGENT_DB_PATH=")]

    assert paths == ["AGENT_DB_PATH=/var/lib/agentstate/agent.db"]
    assert words(service, "ReadWritePaths")[0] == "/var/lib/agentstate"
    assert words(service, "StateDirectory")[0] == "agentstate"


def test_only_the_builder_reaches_the_repositories_and_only_the_backup_its_copies() -> None:
    """What a role does not need is read-only for it."""
    further = {service: words(service, "ReadWritePaths")[1:] for service in SERVICES}

    assert {service: paths for service, paths in further.items() if paths} == {
        "agentstate-backup.service": ["/var/lib/agentstate-backups"],
        "agentstate-builder.service": ["/srv/repositories"],
    }


@pytest.mark.parametrize("unit", [f"agentstate-{role}.{kind}" for role in ROLES for kind in ("service", "path")])
def test_a_role_runs_only_after_an_upgrade_that_succeeded(unit: str) -> None:
    """Requires= without After= would start both at once."""
    assert (UNITS[unit]["Unit"]["Requires"], UNITS[unit]["Unit"]["After"]) == (UPGRADE, UPGRADE)


def test_the_upgrade_counts_as_done_until_it_is_restarted() -> None:
    """Without RemainAfterExit= every message would upgrade anew, and restarting it would not stop the roles."""
    upgrade = UNITS["agentstate-upgrade.service"]

    assert upgrade["Service"]["RemainAfterExit"] == ["yes"]
    assert upgrade["Install"]["WantedBy"] == ["multi-user.target"]


def test_the_maintenance_needs_the_upgrade_and_the_backup_does_not() -> None:
    """After an upgrade that failed a backup is wanted most."""
    maintain, backup = (UNITS[f"agentstate-{name}.service"]["Unit"] for name in ("maintain", "backup"))

    assert (maintain["Requires"], maintain["After"]) == (UPGRADE, UPGRADE)
    assert (backup.get("Requires"), backup["After"]) == (None, UPGRADE)


@pytest.mark.parametrize("role", ROLES)
def test_a_path_waits_for_an_inbox_that_its_role_may_take_jobs_from(role: str) -> None:
    """A job that cannot be moved out of its inbox starts the role again and again."""
    path = UNITS[f"agentstate-{role}.path"]

    (glob,) = path["Path"]["PathExistsGlob"]
    assert glob == f"/var/lib/agentstate/{'' if role == 'worker' else 'builder-'}inbox/*.json"
    assert path["Install"]["WantedBy"] == ["multi-user.target"]


@pytest.mark.parametrize("role", ROLES)
def test_a_path_is_not_ordered_before_the_services_that_it_waits_for(role: str) -> None:
    """A path's default place is before paths.target, so before all services: after the upgrade that is a cycle."""
    unit = UNITS[f"agentstate-{role}.path"]["Unit"]

    assert unit["DefaultDependencies"] == ["no"]
    assert unit["Conflicts"] == unit["Before"] == ["shutdown.target"]


@pytest.mark.parametrize("role", ROLES)
def test_many_short_jobs_do_not_stop_a_role_and_a_failing_one_makes_a_pause(role: str) -> None:
    """Five short messages in ten seconds reached systemd's limit of starts, and the sixth waited for a person."""
    unit = UNITS[f"agentstate-{role}.service"]

    assert unit["Unit"]["StartLimitIntervalSec"] == ["0"]
    assert unit["Service"]["ExecStopPost"] == ["/bin/sh -c '[ \"$$SERVICE_RESULT\" = success ] || exec sleep 10'"]
    assert unit["Service"]["SuccessExitStatus"] == ["SIGTERM"]


@pytest.mark.parametrize("name", ["backup", "maintain"])
def test_a_timer_makes_up_for_a_time_that_was_missed(name: str) -> None:
    """A machine that is off at night would never be backed up or maintained."""
    unit = UNITS[f"agentstate-{name}.timer"]

    assert unit["Timer"]["Persistent"] == ["yes"]
    assert unit["Timer"]["OnCalendar"] == [{"backup": "hourly", "maintain": "daily"}[name]]
    assert unit["Install"]["WantedBy"] == ["timers.target"]


def test_old_backups_go_only_after_a_new_one_that_succeeded() -> None:
    """A backup that fails for two weeks must not delete the last good one."""
    service = UNITS["agentstate-backup.service"]["Service"]

    (made,), (deleted,) = service["ExecStart"], service["ExecStartPost"]
    assert made == "/opt/agentstate/bin/agentstate backup --verify /var/lib/agentstate-backups"
    assert deleted == "/usr/bin/find /var/lib/agentstate-backups -maxdepth 1 -name agent.db.backup-* -mtime +14 -delete"


@pytest.mark.parametrize(
    ("database", "backups", "code"),
    [(None, [], 0), ("rows", [], 0), ("rows", ["one"], 0), (None, ["one"], 7), ("", ["one"], 7), (None, None, 0)],
    ids=["the first start", "no backup yet", "as always", "gone", "emptied", "no backups are made"],
)
def test_a_lost_database_is_not_replaced_by_a_new_one_where_there_are_backups(
    tmp_path: Path, database: str | None, backups: list[str] | None, code: int
) -> None:
    """FS-05: a restart took the lost store for a fresh one, and everybody went on as if nothing had been known."""
    (command,) = UNITS["agentstate-upgrade.service"]["Service"]["ExecStartPre"]
    script = command.removeprefix("/bin/sh -c '").removesuffix("'").replace("/var/lib", str(tmp_path))
    (tmp_path / "agentstate").mkdir()
    if database is not None:
        (tmp_path / "agentstate" / "agent.db").write_text(database)
    if backups is not None:
        (tmp_path / "agentstate-backups").mkdir()
        for name in backups:
            (tmp_path / "agentstate-backups" / name).touch()

    done = subprocess.run(["sh", "-c", script.replace("$$", "$")], capture_output=True, text=True, check=False)

    assert done.returncode == code
    assert done.stderr.endswith("restore one\n" if code else "")


def test_every_command_is_one_that_there_is() -> None:
    """A unit with a misspelt command fails at night."""
    text = "".join(TEXTS.values())

    named = re.findall(r"/opt/agentstate/bin/agentstate (\w+)", text)
    modules = re.findall(r"-m (agent_codex\.\w+)", text)

    assert set(named) == {"upgrade", "maintain", "backup"} <= set(COMMANDS)
    assert set(modules) == {f"agent_codex.{name}" for name in ("worker", "builder", "demo_agent", "demo_coder")}
    assert [name for name in modules if not (ROOT / "examples" / f"{name.replace('.', '/')}.py").exists()] == []


def test_every_variable_is_one_that_is_read() -> None:
    """A unit with a variable that nobody reads looks configured and is not."""
    readers = [ROOT / "src" / "agentstate" / "settings.py", ROOT / "examples" / "agent_codex" / "role.py"]
    read = set(re.findall(r"\bAGENT_[A-Z_]+", "".join(path.read_text(encoding="utf-8") for path in readers)))

    assert set(re.findall(r"\bAGENT_[A-Z_]+", "".join(TEXTS.values()))) <= read


def test_every_unit_is_on_the_operators_page() -> None:
    """A unit that the page does not name is not installed."""
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")

    assert [name for name in UNITS if f"`{name}`" not in page] == []


@needs_systemd
def test_systemd_has_nothing_against_the_units(tmp_path: Path) -> None:
    """A misspelt setting is ignored when it is loaded: the sandbox would be open, and nobody would be told."""
    assert complaints(TEXTS, tmp_path) == ""
