# The library and the command in one package. Scripts that import it run on
# `agentstate.pythonModule.withPackages (_: [ agentstate ])`.
{
  lib,
  python3,
  fetchPypi,
}:

let
  inherit (python3.pkgs) buildPythonPackage;

  inherit (lib.importTOML ../pyproject.toml) project;

  # Two floors of pyproject.toml that a nixpkgs may not have reached yet. An Alembic built on an older SQLAlchemy counts
  # as missing too: two versions of SQLAlchemy in one environment would shadow each other.
  hasSqlalchemy = lib.versionAtLeast python3.pkgs.sqlalchemy.version "2.1";
  hasAlembic = hasSqlalchemy && lib.versionAtLeast python3.pkgs.alembic.version "1.20";

  # A published wheel stands in for what is missing: it needs no compiler and no newer build tools than nixpkgs has.
  wheel =
    {
      pname,
      version,
      hash,
      dependencies,
    }:
    buildPythonPackage {
      inherit pname version dependencies;
      format = "wheel";
      src = fetchPypi {
        inherit pname version hash;
        format = "wheel";
        dist = "py3";
        python = "py3";
      };
      pythonImportsCheck = [ pname ];
    };

  sqlalchemy =
    if hasSqlalchemy then
      python3.pkgs.sqlalchemy
    else
      wheel {
        pname = "sqlalchemy";
        version = "2.1.9";
        hash = "sha256-RJ/tXCyqOyeMxXSZ0J2wAfs/KNx/GK/8SBQq7k3MDN8=";
        dependencies = [ python3.pkgs.typing-extensions ];
      };

  alembic =
    if hasAlembic then
      python3.pkgs.alembic
    else
      wheel {
        pname = "alembic";
        version = "1.20.1";
        hash = "sha256-mXBxLPuB6ibIZY03iqpbj2/5FG5bsRHXBJfBZAFs9Zg=";
        dependencies = [
          python3.pkgs.mako
          python3.pkgs.typing-extensions
          sqlalchemy
        ];
      };
in
buildPythonPackage {
  pname = project.name;
  inherit (project) version;
  pyproject = true;

  # Only what the wheel is made of: an edited test or page builds nothing anew.
  src = lib.fileset.toSource {
    root = ../.;
    fileset = lib.fileset.unions [
      ../LICENSE
      ../README.md
      ../migrations
      ../pyproject.toml
      ../src
    ];
  };

  build-system = [ python3.pkgs.hatchling ];

  dependencies = [
    sqlalchemy
    alembic
    python3.pkgs.click
    python3.pkgs.rich
    python3.pkgs.psycopg # loaded only for a URL of PostgreSQL
  ];

  # The tests are a check of the flake (checks.nix): building the package does not wait for them.
  doCheck = false;

  pythonImportsCheck = [
    "agentstate"
    "agentstate.adapter"
    "agentstate.cli.main"
  ];

  # `agentstate upgrade` reads the revisions from the installed package.
  postInstall = ''
    test -f "$out/${python3.sitePackages}/agentstate/migrations/env.py"
  '';

  meta = {
    inherit (project) description;
    license = lib.licenses.mit;
    mainProgram = "agentstate";
  };
}
