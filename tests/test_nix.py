"""The Nix files: they parse, and the module makes the units that the roles rely on.

Parsing needs `nix-instantiate`. Evaluating needs a copy of nixpkgs' `lib` as well, named by NIXPKGS_LIB; the options of
NixOS that the module sets are declared here, so that a misspelt one fails. What is not there is skipped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unit_files import complaints, needs_systemd, parsed

ROOT = Path(__file__).resolve().parent.parent
MODULE = ROOT / "nix" / "module.nix"
PAGE = ROOT / "docs" / "nix.md"
NIX_FILES = [ROOT / "flake.nix", *sorted((ROOT / "nix").glob("*.nix"))]

NIX = shutil.which("nix-instantiate")
NIXPKGS_LIB = os.environ.get("NIXPKGS_LIB")

needs_nix = pytest.mark.skipif(NIX is None, reason="nix-instantiate is not installed")
needs_lib = pytest.mark.skipif(
    NIX is None or not NIXPKGS_LIB, reason="needs nix-instantiate, and NIXPKGS_LIB naming a copy of nixpkgs' lib"
)

# The part of NixOS that the module sets, and no more of it.
NIXOS = """
{ lib, ... }:
let
  inherit (lib) mkOption types;
  lines = mkOption { type = types.listOf types.str; default = [ ]; };
  setting = types.oneOf [ types.bool types.int types.str (types.listOf types.str) ];
  section = mkOption { type = types.attrsOf setting; default = { }; };
  units = options: mkOption {
    default = { };
    type = types.attrsOf (types.submodule {
      options = {
        description = mkOption { type = types.str; };
        wantedBy = lines;
        requires = lines;
        wants = lines;
        after = lines;
        before = lines;
        conflicts = lines;
        unitConfig = section;
      } // options;
    });
  };
  anything = mkOption { type = types.attrsOf types.anything; default = { }; };
in
{
  options = {
    assertions = mkOption { type = types.listOf types.unspecified; default = [ ]; };
    environment.systemPackages = mkOption { type = types.listOf types.package; default = [ ]; };
    systemd.paths = units { pathConfig = section; };
    systemd.timers = units { timerConfig = section; };
    systemd.services = units {
      environment = mkOption { type = types.attrsOf types.str; default = { }; };
      path = mkOption { type = types.listOf types.unspecified; default = [ ]; };
      serviceConfig = section;
    };
    systemd.tmpfiles.rules = lines;
    users.users = anything;
    users.groups = anything;
  };
}
"""

TWO_ROLES = """
{
  services.agentstate = {
    enable = true;
    roles.worker = {
      command = "/bin/worker --once";
      inbox = "/var/lib/agentstate/inbox/*.json";
    };
    roles.builder = {
      command = "/bin/builder";
      inbox = "/srv/jobs/*.json";
      readWritePaths = [ "/srv/jobs" "/srv/repositories" ];
    };
  };
}
"""

WITH_MAINTENANCE = """
{
  services.agentstate = {
    enable = true;
    environment.AGENT_KEEP_CONVERSATIONS = "30d";
    maintain = { enable = true; onCalendar = "Sun 04:00"; };
  };
}
"""

System = dict[str, Any]
Evaluate = Callable[[str], System]
Ask = Callable[[str], Any]


@pytest.fixture(scope="module")
def instantiate(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Run nix-instantiate on a store of its own: one machine has no store, on another it belongs to somebody else."""
    store = tmp_path_factory.mktemp("nix-store")

    def run(*arguments: str) -> str:
        assert NIX is not None
        done = subprocess.run([NIX, "--store", str(store), *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def ask(instantiate: Callable[..., str]) -> Ask:
    """Return the value of a Nix expression in which `lib` is nixpkgs' lib."""

    def value(expression: str) -> Any:
        given = f"let lib = import {json.dumps(NIXPKGS_LIB)}; in {expression}"
        return json.loads(instantiate("--eval", "--strict", "--json", "--expr", given))

    return value


@pytest.fixture(scope="module")
def evaluate(ask: Ask) -> Evaluate:
    """Return what NixOS would see of a configuration: units, users, directories, and the assertions that failed."""

    def system(configuration: str) -> System:
        result: System = ask(
            f"""
            let
              package = name: {{ type = "derivation"; inherit name; outPath = "/nix/store/{"0" * 32}-${{name}}"; }};
              inherit (lib.evalModules {{
                modules = [
                  ({NIXOS})
                  {MODULE}
                  {{
                    _module.args.pkgs = {{
                      callPackage = file: arguments: package "agentstate";
                      my-agents = package "my-agents";
                      git = package "git";
                      findutils = package "findutils";
                    }};
                  }}
                  ({configuration})
                ];
              }}) config;
            in
            {{
              inherit (config.systemd) services paths timers;
              inherit (config.users) users groups;
              inherit (config.systemd.tmpfiles) rules;
              failed = map (a: a.message) (builtins.filter (a: !a.assertion) config.assertions);
              commands = map (each: each.outPath) config.environment.systemPackages;
            }}
            """
        )
        return result

    return system


@pytest.fixture(scope="module")
def two_roles(evaluate: Evaluate) -> System:
    """A worker with its inbox in the state directory, and a builder with directories of its own."""
    return evaluate(TWO_ROLES)


@pytest.fixture(scope="module")
def maintained(evaluate: Evaluate) -> System:
    """A machine whose database is maintained every Sunday."""
    return evaluate(WITH_MAINTENANCE)


def agentstate(settings: str) -> str:
    """Return a configuration with one role, and with these settings of `services.agentstate`."""
    return f"""
    {{
      services.agentstate = lib.mkMerge [
        {{
          enable = true;
          roles.worker = {{ command = "/bin/worker"; inbox = lib.mkDefault "/var/lib/agentstate/inbox/*"; }};
        }}
        {{ {settings} }}
      ];
    }}
    """


def nix_blocks(page: Path) -> list[str]:
    """Return the Nix code of a page, block by block."""
    return re.findall(r"^```nix\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


# --- without nix -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", [MODULE, PAGE], ids=lambda file: file.name)
def test_every_variable_that_is_named_is_one_that_agentstate_reads(file: Path) -> None:
    """A unit with a variable that nobody reads looks configured and is not."""
    settings = (ROOT / "src" / "agentstate" / "settings.py").read_text(encoding="utf-8")

    named = set(re.findall(r"\bAGENT_[A-Z_]+", file.read_text(encoding="utf-8")))
    read = set(re.findall(r"\bAGENT_[A-Z_]+", settings))

    assert {"AGENT_DB_PATH", "AGENT_DB_URL"} <= named
    assert named <= read


# --- with nix-instantiate --------------------------------------------------------------------------------------------


@needs_nix
@pytest.mark.parametrize("file", NIX_FILES, ids=lambda file: file.name)
def test_every_nix_file_parses(instantiate: Callable[..., str], file: Path) -> None:
    """A flake with one broken file gives nothing at all, not even the package."""
    parsed = instantiate("--parse", str(file))

    assert parsed


# --- the package and the flake ---------------------------------------------------------------------------------------


@needs_lib
def test_the_flake_offers_a_package_checks_and_the_module(ask: Ask) -> None:
    """The three names that a machine's flake refers to."""
    outputs = ask(
        f"""
        let
          pkgs = {{
            stdenv.hostPlatform.system = "x86_64-linux";
            callPackage = file: arguments: {{ pythonModule.pkgs = {{ }}; overridePythonAttrs = change: "a check"; }};
            git = null;
            sqlite = null;
            inherit lib;
          }};
          nixpkgs = {{ inherit lib; legacyPackages = {{ x86_64-linux = pkgs; }}; }};
          flake = (import {ROOT}/flake.nix).outputs {{ self = flake; inherit nixpkgs; }};
        in
        {{
          package = flake.packages.x86_64-linux ? default;
          checks = flake.checks.x86_64-linux;
          module = builtins.pathExists flake.nixosModules.default;
        }}
        """
    )

    assert outputs == {"package": True, "checks": {"pytest": "a check"}, "module": True}


@needs_lib
@pytest.mark.parametrize(
    ("present", "expected"),
    [
        (("2.0.40", "1.15.2"), {"sqlalchemy": "2.1.9", "alembic": "1.20.1"}),
        (("2.0.40", "1.21.0"), {"sqlalchemy": "2.1.9", "alembic": "1.20.1"}),
        (("2.1.12", "1.15.2"), {"sqlalchemy": "2.1.12", "alembic": "1.20.1"}),
        (("2.1.12", "1.21.0"), {"sqlalchemy": "2.1.12", "alembic": "1.21.0"}),
    ],
    ids=["both too old", "alembic on an old sqlalchemy", "alembic too old", "both new enough"],
)
def test_the_package_brings_what_nixpkgs_is_too_old_for(
    ask: Ask, present: tuple[str, str], expected: dict[str, str]
) -> None:
    """Two versions of SQLAlchemy in one environment would shadow each other, so Alembic follows SQLAlchemy."""
    package = ask(package_expression(*present))

    versions = {each["pname"]: each["version"] for each in package["dependencies"]}
    below_alembic = {each["pname"]: each["version"] for each in package["belowAlembic"]}
    assert versions == expected | {"click": "any", "psycopg": "any", "rich": "any"}
    assert below_alembic["sqlalchemy"] == expected["sqlalchemy"]


@needs_lib
def test_the_package_depends_on_what_pyproject_names(ask: Ask) -> None:
    """The dependencies are listed twice; the lists must not drift."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["postgres"]
    named = {re.split(r"[^A-Za-z0-9_-]", line)[0].lower() for line in wanted}

    package = ask(package_expression("2.1.12", "1.21.0"))

    assert (package["pname"], package["version"]) == (project["name"], project["version"])
    assert {each["pname"] for each in package["dependencies"]} == named


def package_expression(sqlalchemy: str, alembic: str) -> str:
    """Return the package's name, version and dependencies, in a nixpkgs that has these two versions."""
    return f"""
    let
      present = pname: version: {{ inherit pname version; dependencies = [ ]; }};
      sqlalchemy = present "sqlalchemy" "{sqlalchemy}";
      package = import {ROOT}/nix/package.nix {{
        lib = lib // {{ fileset = {{ toSource = set: null; unions = files: null; }}; }};
        fetchPypi = source: source;
        python3.sitePackages = "site-packages";
        python3.pkgs = {{
          buildPythonPackage = arguments: arguments;
          inherit sqlalchemy;
          alembic = present "alembic" "{alembic}" // {{ dependencies = [ sqlalchemy ]; }};
          click = present "click" "any";
          rich = present "rich" "any";
          psycopg = present "psycopg" "any";
          mako = present "mako" "any";
          typing-extensions = present "typing-extensions" "any";
          hatchling = null;
        }};
      }};
      short = each: {{ inherit (each) pname version; }};
      below = builtins.head (builtins.filter (each: each.pname == "alembic") package.dependencies);
    in
    {{
      inherit (package) pname version;
      dependencies = map short package.dependencies;
      belowAlembic = map short below.dependencies;
    }}
    """


# --- the units of two roles ------------------------------------------------------------------------------------------


@needs_lib
def test_the_module_makes_one_upgrade_and_a_service_with_a_path_per_role(two_roles: System) -> None:
    """The names are what operators type into systemctl."""
    roles = {"agentstate-worker", "agentstate-builder"}

    assert set(two_roles["services"]) == roles | {"agentstate-upgrade"}
    assert set(two_roles["paths"]) == roles
    assert two_roles["failed"] == []


@needs_lib
def test_the_schema_is_upgraded_once_and_before_every_role(two_roles: System) -> None:
    """A role on a schema that is behind can do nothing but fail."""
    upgrade = two_roles["services"]["agentstate-upgrade"]

    config = upgrade["serviceConfig"]
    assert set(upgrade["before"]) == {"agentstate-worker.service", "agentstate-builder.service"}
    assert upgrade["wantedBy"] == ["multi-user.target"]
    assert (config["Type"], config["RemainAfterExit"]) == ("oneshot", True)
    assert re.fullmatch(r"/nix/store/\S+-agentstate/bin/agentstate upgrade", config["ExecStart"])


@needs_lib
@pytest.mark.parametrize("role", ["worker", "builder"])
def test_a_role_runs_only_after_an_upgrade_that_succeeded(two_roles: System, role: str) -> None:
    """Requires= without After= would start both at once."""
    service = two_roles["services"][f"agentstate-{role}"]

    assert service["requires"] == ["agentstate-upgrade.service"]
    assert service["after"] == ["agentstate-upgrade.service"]
    assert service["wantedBy"] == []
    assert service["serviceConfig"]["Type"] == "oneshot"
    assert "RemainAfterExit" not in service["serviceConfig"]


@needs_lib
def test_a_role_runs_its_own_command(two_roles: System) -> None:
    """The command is systemd's line, arguments included."""
    services = two_roles["services"]

    assert services["agentstate-worker"]["serviceConfig"]["ExecStart"] == "/bin/worker --once"
    assert services["agentstate-builder"]["serviceConfig"]["ExecStart"] == "/bin/builder"


@needs_lib
@pytest.mark.parametrize("role", ["worker", "builder"])
def test_many_short_jobs_do_not_stop_a_role_and_a_failing_one_makes_a_pause(two_roles: System, role: str) -> None:
    """Five short messages in ten seconds reached systemd's limit of starts, and the sixth waited for a person."""
    service = two_roles["services"][f"agentstate-{role}"]

    assert service["unitConfig"] == {"StartLimitIntervalSec": 0}
    assert (
        service["serviceConfig"]["ExecStopPost"] == "/bin/sh -c '[ \"$$SERVICE_RESULT\" = success ] || exec sleep 10'"
    )
    assert service["serviceConfig"]["SuccessExitStatus"] == "SIGTERM"


@needs_lib
def test_a_path_waits_for_its_roles_inbox(two_roles: System) -> None:
    """A path starts the service of the same name, so the glob is all that it needs."""
    paths = two_roles["paths"]

    assert paths["agentstate-worker"]["pathConfig"] == {"PathExistsGlob": "/var/lib/agentstate/inbox/*.json"}
    assert paths["agentstate-builder"]["pathConfig"] == {"PathExistsGlob": "/srv/jobs/*.json"}
    assert paths["agentstate-worker"]["wantedBy"] == ["multi-user.target"]


@needs_lib
@pytest.mark.parametrize("role", ["worker", "builder"])
def test_a_path_goes_down_with_the_upgrade(two_roles: System, role: str) -> None:
    """A job put back during a switch must not be started by the units that are being replaced."""
    path = two_roles["paths"][f"agentstate-{role}"]

    assert path["requires"] == ["agentstate-upgrade.service"]
    assert path["after"] == ["agentstate-upgrade.service"]


@needs_lib
@pytest.mark.parametrize("role", ["worker", "builder"])
def test_a_path_is_not_ordered_before_the_services_that_it_waits_for(two_roles: System, role: str) -> None:
    """A path's default place is before paths.target, so before all services: after the upgrade that is a cycle."""
    path = two_roles["paths"][f"agentstate-{role}"]

    assert path["unitConfig"] == {"DefaultDependencies": False}
    assert path["conflicts"] == ["shutdown.target"]
    assert path["before"] == ["shutdown.target"]


@needs_lib
@pytest.mark.parametrize("unit", ["upgrade", "worker", "builder"])
def test_every_unit_finds_the_same_database(two_roles: System, unit: str) -> None:
    """A role on another file than the upgrade would find no schema."""
    service = two_roles["services"][f"agentstate-{unit}"]

    assert service["environment"] == {"AGENT_DB_PATH": "/var/lib/agentstate/agent.db"}


@needs_lib
@pytest.mark.parametrize("unit", ["upgrade", "worker", "builder"])
def test_every_unit_is_confined(two_roles: System, unit: str) -> None:
    """Agents run other people's text: what they can reach and who can read their files is decided here."""
    config = two_roles["services"][f"agentstate-{unit}"]["serviceConfig"]

    expected = {
        "User": "agentstate",
        "Group": "agentstate",
        "StateDirectory": "agentstate",
        "StateDirectoryMode": "0700",
        "UMask": "0077",
        "ProtectSystem": "strict",
        "NoNewPrivileges": True,
        "PrivateTmp": True,
    }
    assert {name: config.get(name) for name in expected} == expected


@needs_lib
@pytest.mark.parametrize("unit", ["upgrade", "worker", "builder"])
def test_a_unit_is_asked_to_stop_and_given_time(two_roles: System, unit: str) -> None:
    """A switch once killed a builder in the middle of a job, and the record stayed orphaned."""
    config = two_roles["services"][f"agentstate-{unit}"]["serviceConfig"]

    assert config["KillSignal"] == "SIGTERM"
    assert config["KillMode"] == "mixed"
    assert config["TimeoutStopSec"] == "90s"


@needs_lib
def test_a_unit_may_write_the_state_directory_and_its_own_paths_only(two_roles: System) -> None:
    """WAL needs the directory of the database; the builder's repositories are nothing to the worker."""
    services = two_roles["services"]

    writable = {name: service["serviceConfig"]["ReadWritePaths"] for name, service in services.items()}
    assert writable == {
        "agentstate-upgrade": ["/var/lib/agentstate"],
        "agentstate-worker": ["/var/lib/agentstate"],
        "agentstate-builder": ["/var/lib/agentstate", "/srv/jobs", "/srv/repositories"],
    }


@needs_lib
def test_the_default_user_is_made_and_another_one_is_not(evaluate: Evaluate, two_roles: System) -> None:
    """Another user belongs to somebody else's configuration."""
    own = evaluate(agentstate('user = "alice"; group = "users";'))

    assert two_roles["users"]["agentstate"]["isSystemUser"] is True
    assert two_roles["users"]["agentstate"]["home"] == "/var/lib/agentstate"
    assert two_roles["groups"] == {"agentstate": {}}
    assert (own["users"], own["groups"]) == ({}, {})
    assert own["services"]["agentstate-worker"]["serviceConfig"]["User"] == "alice"


@needs_lib
def test_nothing_is_made_until_it_is_enabled(evaluate: Evaluate) -> None:
    """Importing the module must not change a machine."""
    system = evaluate("{ }")

    assert {name: len(part) for name, part in system.items()} == dict.fromkeys(system, 0)


# --- maintenance -----------------------------------------------------------------------------------------------------


@needs_lib
def test_nothing_is_deleted_by_a_timer_that_nobody_asked_for(two_roles: System) -> None:
    """Rows go only where somebody has switched it on."""
    assert two_roles["timers"] == {}
    assert "agentstate-maintain" not in two_roles["services"]


@needs_lib
def test_the_maintenance_runs_by_the_calendar_and_makes_up_for_a_time_that_was_missed(maintained: System) -> None:
    """A machine that was off every Sunday morning would never be maintained, and nobody would notice."""
    timer = maintained["timers"]["agentstate-maintain"]

    assert maintained["failed"] == []
    assert timer["wantedBy"] == ["timers.target"]
    assert timer["timerConfig"] == {"OnCalendar": "Sun 04:00", "RandomizedDelaySec": "1h", "Persistent": True}


@needs_lib
def test_the_maintenance_runs_once_per_day_unless_told_otherwise(evaluate: Evaluate) -> None:
    """Switching it on is enough."""
    system = evaluate(agentstate("maintain.enable = true;"))

    assert system["timers"]["agentstate-maintain"]["timerConfig"]["OnCalendar"] == "daily"


@needs_lib
def test_the_maintenance_is_confined_like_the_upgrade_and_waits_for_it(maintained: System) -> None:
    """It deletes rows of the same database, on a schema that is at head, and can reach nothing else."""
    services = maintained["services"]
    upgrade, maintain = services["agentstate-upgrade"], services["agentstate-maintain"]

    config = dict(maintain["serviceConfig"])
    assert re.fullmatch(r"/nix/store/\S+-agentstate/bin/agentstate maintain", config.pop("ExecStart"))
    assert config == {
        name: value for name, value in upgrade["serviceConfig"].items() if name not in ("ExecStart", "RemainAfterExit")
    }
    assert maintain["requires"] == maintain["after"] == ["agentstate-upgrade.service"]
    assert maintain["wantedBy"] == []
    assert maintain["environment"] == upgrade["environment"]
    assert maintain["environment"] == {
        "AGENT_DB_PATH": "/var/lib/agentstate/agent.db",
        "AGENT_KEEP_CONVERSATIONS": "30d",
    }


# --- as systemd reads them -------------------------------------------------------------------------------------------


def unit_file(*sections: tuple[str, dict[str, Any]]) -> str:
    """Return the text of a unit, written as NixOS writes it."""
    lines = []
    for heading, settings in sections:
        lines.append(f"[{heading}]")
        for name, value in settings.items():
            values = value if isinstance(value, list) else [value]
            words = [str(each).lower() if isinstance(each, bool) else str(each) for each in values]
            if words:
                lines.append(f"{name}={' '.join(words)}")
    return "\n".join(lines) + "\n"


def unit_files(system: System) -> dict[str, str]:
    """Return every unit of a system by its file's name."""
    files = {}
    for kind, section in (("service", "serviceConfig"), ("path", "pathConfig"), ("timer", "timerConfig")):
        for name, unit in system[f"{kind}s"].items():
            order = {key.capitalize(): unit[key] for key in ("requires", "wants", "after", "before", "conflicts")}
            about = {"Description": unit["description"], **order, **unit["unitConfig"]}
            settings = dict(unit[section])
            if kind == "service":
                settings["Environment"] = [f'"{key}={value}"' for key, value in unit["environment"].items()]
            files[f"{name}.{kind}"] = unit_file(("Unit", about), (kind.capitalize(), settings))
    return files


@needs_lib
@needs_systemd
def test_systemd_has_nothing_against_the_units(two_roles: System, maintained: System, tmp_path: Path) -> None:
    """NixOS writes settings as they come; a misspelt one is ignored when it is loaded, and the sandbox open."""
    files = unit_files(two_roles) | unit_files(maintained)

    assert len(files) == 7
    assert complaints(files, tmp_path) == ""


@needs_lib
@pytest.mark.parametrize(
    "unit", ["upgrade.service", "worker.service", "worker.path", "maintain.service", "maintain.timer"]
)
def test_the_units_for_a_machine_without_nix_are_the_same(evaluate: Evaluate, unit: str) -> None:
    """Two sets of units drift apart, and the sandbox of one of them is the weaker one."""
    system = evaluate(agentstate('maintain.enable = true; roles.worker.inbox = "/var/lib/agentstate/inbox/*.json";'))
    example = parsed((ROOT / "examples" / "systemd" / f"agentstate-{unit}").read_text(encoding="utf-8"))

    module = parsed(unit_files(system)[f"agentstate-{unit}"].replace("=true\n", "=yes\n").replace("=false\n", "=no\n"))

    own = {"Description", "ExecStartPre", "ExecStart", "Environment", "Install", "Before"}
    for section in ("Unit", "Service", "Path", "Timer"):
        here, there = ({k: v for k, v in each.get(section, {}).items() if k not in own} for each in (example, module))
        assert here == there


# --- settings --------------------------------------------------------------------------------------------------------


@needs_lib
def test_a_database_url_takes_the_place_of_the_path(evaluate: Evaluate) -> None:
    """Both set to different databases is an error at the first call; and a server may be on this machine."""
    system = evaluate(agentstate('databaseUrl = "postgresql+psycopg:///agentstate?host=/run/postgresql";'))

    services = system["services"]
    assert system["failed"] == []
    for unit in ("agentstate-upgrade", "agentstate-worker"):
        assert services[unit]["environment"] == {
            "AGENT_DB_URL": "postgresql+psycopg:///agentstate?host=/run/postgresql"
        }
    assert "postgresql.service" in services["agentstate-upgrade"]["after"]


@needs_lib
def test_a_roles_environment_wins_over_the_common_one(evaluate: Evaluate) -> None:
    """One slow role may wait longer for a lock than the others."""
    system = evaluate(
        agentstate(
            """
            environment = { AGENT_DB_BUSY_TIMEOUT = "10"; LANG = "C.UTF-8"; };
            roles.worker.environment.AGENT_DB_BUSY_TIMEOUT = "60";
            """
        )
    )

    services = system["services"]
    assert services["agentstate-upgrade"]["environment"]["AGENT_DB_BUSY_TIMEOUT"] == "10"
    assert services["agentstate-worker"]["environment"]["AGENT_DB_BUSY_TIMEOUT"] == "60"
    assert services["agentstate-worker"]["environment"]["LANG"] == "C.UTF-8"


@needs_lib
def test_a_percent_sign_in_a_variable_reaches_the_program(evaluate: Evaluate) -> None:
    """systemd replaces %H by the host's name, in the middle of an encoded URL too."""
    system = evaluate(agentstate('databaseUrl = "postgresql+psycopg://db/a%20b"; environment.NOTE = "100 %H";'))

    environment = system["services"]["agentstate-worker"]["environment"]
    assert environment == {"AGENT_DB_URL": "postgresql+psycopg://db/a%%20b", "NOTE": "100 %%H"}


@needs_lib
def test_a_state_directory_outside_var_lib_is_made_as_well(evaluate: Evaluate) -> None:
    """systemd's StateDirectory= knows /var/lib only, and a missing ReadWritePaths= entry stops the unit."""
    system = evaluate(agentstate('stateDir = "/srv/agents"; roles.worker.inbox = "/srv/agents/inbox/*";'))

    config = system["services"]["agentstate-worker"]["serviceConfig"]
    assert system["failed"] == []
    assert system["rules"] == ["d /srv/agents 0700 agentstate agentstate -"]
    assert "StateDirectory" not in config
    assert config["ReadWritePaths"] == ["/srv/agents"]
    assert system["services"]["agentstate-worker"]["environment"] == {"AGENT_DB_PATH": "/srv/agents/agent.db"}


@needs_lib
def test_a_state_directory_deeper_in_var_lib_is_systemds(evaluate: Evaluate) -> None:
    """What is made by systemd is named relative to /var/lib."""
    system = evaluate(agentstate('stateDir = "/var/lib/agents/one"; roles.worker.inbox = "/var/lib/agents/one/in/*";'))

    assert system["services"]["agentstate-upgrade"]["serviceConfig"]["StateDirectory"] == "agents/one"
    assert system["rules"] == []


@needs_lib
def test_a_database_elsewhere_is_writable_for_the_upgrade_and_the_roles_that_say_so(evaluate: Evaluate) -> None:
    """A directory of its own is allowed once every role may write it."""
    system = evaluate(
        agentstate('databasePath = "/srv/state/agent.db"; roles.worker.readWritePaths = [ "/srv/state" ];')
    )

    services = system["services"]
    assert system["failed"] == []
    for unit in ("agentstate-upgrade", "agentstate-worker"):
        assert services[unit]["serviceConfig"]["ReadWritePaths"] == ["/var/lib/agentstate", "/srv/state"]
        assert services[unit]["environment"] == {"AGENT_DB_PATH": "/srv/state/agent.db"}


@needs_lib
@pytest.mark.parametrize(
    "settings",
    [
        'databasePath = "/srv/state/agent.db";',
        'databasePath = "/var/lib/agentstate-2/agent.db";',
        'databasePath = "/srv/state/agent.db"; roles.worker.readWritePaths = [ "/srv/state/agent.db" ];',
        'databasePath = "/srv/state/agent.db"; roles.worker.readWritePaths = [ "/srv/state/deeper" ];',
    ],
    ids=["nowhere", "a name that only begins alike", "the file alone", "a directory below"],
)
def test_a_database_that_a_role_may_not_write_beside_is_refused(evaluate: Evaluate, settings: str) -> None:
    """The unit would start and fail at its first statement: SQLite makes -wal and -shm beside the file."""
    failed = evaluate(agentstate(settings))["failed"]

    assert len(failed) == 1
    assert "services.agentstate.databasePath" in failed[0]
    assert "services.agentstate.roles.worker.readWritePaths" in failed[0]


@needs_lib
@pytest.mark.parametrize(
    ("settings", "option"),
    [
        ('roles.worker.inbox = "/srv/jobs/*.json";', "roles.worker.inbox"),
        ('roles.upgrade = { command = "/x"; inbox = "/var/lib/agentstate/x/*"; };', "roles.upgrade"),
        ('roles.maintain = { command = "/x"; inbox = "/var/lib/agentstate/x/*"; };', "roles.maintain"),
        ('roles.Worker = { command = "/x"; inbox = "/var/lib/agentstate/x/*"; };', "roles.Worker"),
        ('environment.AGENT_DB_PATH = "/srv/other.db";', "environment"),
        ('roles.worker.environment.AGENT_DB_URL = "sqlite:////srv/other.db";', "roles.worker.environment"),
        ('databaseUrl = "sqlite:////srv/other.db";', "databaseUrl"),
        ('databaseUrl = "postgresql+psycopg://alice:secret@db/agentstate";', "databaseUrl"),
        ('databaseUrl = "postgresql+psycopg://db/agentstate?user=alice&password=secret";', "databaseUrl"),
    ],
    ids=[
        "an inbox that is read-only",
        "a role in the place of the upgrade",
        "a role in the place of the maintenance",
        "a role's name that agentstate refuses",
        "a second path",
        "a second URL",
        "SQLite by URL",
        "a password",
        "a password as a parameter",
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(evaluate: Evaluate, settings: str, option: str) -> None:
    """Refused while the configuration is built, not in the journal at night; and never showing a password."""
    failed = evaluate(agentstate(settings))["failed"]

    assert len(failed) == 1
    assert failed[0].startswith(f"services.agentstate.{option}:")
    assert "secret" not in failed[0]


@needs_lib
@pytest.mark.parametrize(
    "path",
    ["agent.db", "/srv/a b/agent.db", "/srv/100%/agent.db", "/var/lib/agentstate/../other/agent.db", "/srv//a", "/"],
)
def test_a_path_that_would_not_arrive_as_written_is_no_value(ask: Ask, path: str) -> None:
    """systemd splits at blanks and expands %; and a `..` would walk out of the directory that was checked."""
    accepted = ask(
        f"""
        let
          result = lib.evalModules {{
            modules = [
              ({NIXOS})
              {MODULE}
              {{
                _module.args.pkgs = {{ }};
                services.agentstate.databasePath = {json.dumps(path)};
              }}
            ];
          }};
        in
        (builtins.tryEval result.config.services.agentstate.databasePath).success
        """
    )

    assert accepted is False


# --- the page --------------------------------------------------------------------------------------------------------


@needs_lib
def test_the_example_of_the_page_makes_the_units_that_the_page_lists(evaluate: Evaluate) -> None:
    """An example is copied before it is read."""
    example = next(block for block in nix_blocks(PAGE) if "services.agentstate" in block)
    listed = set(re.findall(r"`agentstate-(\w+\.(?:path|service|timer))`", PAGE.read_text(encoding="utf-8")))

    system = evaluate(example)

    assert system["failed"] == []
    assert set(unit_files(system)) == {f"agentstate-{unit}" for unit in listed}


@needs_lib
@needs_systemd
def test_the_backup_of_the_page_is_confined_like_the_maintenance(evaluate: Evaluate, tmp_path: Path) -> None:
    """FS-10: the copies hold everything that the database holds."""
    example = next(block for block in nix_blocks(PAGE) if "agentstate backup" in block)

    system = evaluate(f"{{ imports = [ ({WITH_MAINTENANCE}) ({example}) ]; }}")

    services = system["services"]
    backup, maintain = (services[f"agentstate-{name}"]["serviceConfig"] for name in ("backup", "maintain"))
    differs = {"ExecStart", "ExecStartPost", "StateDirectory", "KillMode", "KillSignal", "TimeoutStopSec"}
    assert {name: backup.get(name) for name in maintain if name not in differs} == {
        name: value for name, value in maintain.items() if name not in differs
    }
    assert services["agentstate-backup"]["environment"] == {"AGENT_DB_PATH": "/var/lib/agentstate/agent.db"}
    assert complaints(unit_files(system), tmp_path) == ""


@needs_lib
def test_the_page_names_every_option(ask: Ask) -> None:
    """An option that is not on the page is found by nobody."""
    options = ask(
        f"""
        let
          declared = (lib.evalModules {{ modules = [ ({NIXOS}) {MODULE} {{ _module.args.pkgs = {{ }}; }} ]; }}).options;
          names = set: builtins.filter (name: name != "_module") (builtins.attrNames set);
          top = declared.services.agentstate;
        in
        names (removeAttrs top [ "roles" "maintain" ])
        ++ map (name: "maintain.${{name}}") (names top.maintain)
        ++ map (name: "roles.<name>.${{name}}") (names (top.roles.type.getSubOptions [ ]))
        """
    )

    rows = re.findall(r"^\| (`.*?`) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    on_the_page = {name for row in rows for name in re.findall(r"`([^`]+)`", row) if not name.startswith("agentstate-")}
    assert on_the_page == set(options)


@needs_nix
def test_every_nix_block_of_the_page_parses(instantiate: Callable[..., str]) -> None:
    """The flake of the example cannot be evaluated without the network, but it can be read."""
    parsed = [instantiate("--parse", "--expr", block) for block in nix_blocks(PAGE)]

    assert len(parsed) == 3
