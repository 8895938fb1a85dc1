# What `nix flake check` builds: the package once more, from the whole checkout, with its tests run.
{
  lib,
  git,
  postgresql,
  sqlite,
  agentstate,
}:

let
  inherit (agentstate.pythonModule) pkgs;
in
{
  pytest = agentstate.overridePythonAttrs (_: {
    # Beside the package: tests, examples, pages, alembic.ini and the Nix files themselves, which tests read.
    src = lib.cleanSource ../.;

    doCheck = true;

    nativeCheckInputs = [
      git # released work is stashed and committed in real repositories
      postgresql # a private server, started from its binaries
      sqlite # the queries in the pages are asked as an operator asks them
      pkgs.hypothesis
      pkgs.pytest-xdist
      pkgs.pytestCheckHook
    ];

    # Several tests start the installed command, and git wants a home.
    preCheck = ''
      export PATH="$out/bin:$PATH"
      export HOME="$TMPDIR"
    '';
  });
}
