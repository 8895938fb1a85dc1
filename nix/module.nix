# services.agentstate: the schema is upgraded first, then each role waits for jobs in its inbox.
{
  config,
  lib,
  pkgs,
  ...
}:

let
  inherit (lib)
    any
    concatLists
    elem
    hasPrefix
    literalExpression
    mapAttrs
    mapAttrs'
    mapAttrsToList
    mkEnableOption
    mkIf
    mkOption
    nameValuePair
    optional
    optionalAttrs
    optionals
    removePrefix
    replaceStrings
    splitString
    types
    unique
    ;

  cfg = config.services.agentstate;

  upgradeUnit = "agentstate-upgrade.service";

  # systemd splits some of these settings at blanks, unquotes them and expands %: such paths are refused, so that the
  # path in the configuration is the path on the disk. No `.`, `..`, `//` or trailing `/` either: whether one path lies
  # within another is then a question about their text.
  plainPath =
    types.addCheck (types.strMatching "(/[^/[:space:]\"'%\\\\]+)+") (
      path: !(any (part: part == "." || part == "..") (splitString "/" path))
    )
    // {
      description = "absolute path without blanks, quotes, `\\`, `%`, `.` or `..` parts, or a trailing `/`";
    };

  isWithin = directory: path: path == directory || hasPrefix "${directory}/" path;

  databaseDirectory = dirOf cfg.databasePath;

  # In an Environment= setting systemd would expand what follows a %.
  literally = mapAttrs (_: replaceStrings [ "%" ] [ "%%" ]);

  # Exactly one of the two, the same for every unit: a role on another database than the upgrade would find no schema.
  database =
    if cfg.databaseUrl == null then { AGENT_DB_PATH = cfg.databasePath; } else { AGENT_DB_URL = cfg.databaseUrl; };

  # systemd makes a StateDirectory only below /var/lib; one elsewhere is made by tmpfiles.
  stateIsManaged = isWithin "/var/lib" cfg.stateDir && cfg.stateDir != "/var/lib";

  ownWritable = unique (
    [ cfg.stateDir ]
    ++ optional (cfg.databaseUrl == null && !(isWithin cfg.stateDir databaseDirectory)) databaseDirectory
  );

  roleWritable = role: unique ([ cfg.stateDir ] ++ role.readWritePaths);

  # What every service has in common.
  serviceConfig =
    writable:
    {
      Type = "oneshot";
      User = cfg.user;
      Group = cfg.group;
      UMask = "0077";
      NoNewPrivileges = true;
      PrivateTmp = true;
      ProtectSystem = "strict";
      # Directories, never the database file alone: in WAL mode SQLite makes -wal and -shm beside it.
      ReadWritePaths = writable;
      # A switch stops a running role. It is asked with SIGTERM and has the time to put its job back into the inbox,
      # whatever the system's default is.
      KillSignal = "SIGTERM";
      # Only the role is told to stop: it ends the git or agent that it runs in its own order.
      KillMode = "mixed";
      TimeoutStopSec = "90s";
    }
    // optionalAttrs stateIsManaged {
      StateDirectory = removePrefix "/var/lib/" cfg.stateDir;
      StateDirectoryMode = "0700";
    };

  # Names of units of the module's own.
  taken = [
    "upgrade"
    "maintain"
  ];

  roleModule = {
    options = {
      command = mkOption {
        type = types.str;
        example = literalExpression ''"''${pkgs.my-agents}/bin/worker"'';
        description = "What runs when there is a job, written as in systemd's `ExecStart=`.";
      };

      inbox = mkOption {
        type = plainPath;
        example = "/var/lib/agentstate/inbox/*.json";
        description = ''
          A glob, as in systemd's `PathExistsGlob=`. The role is started while a file matches it, so the command has to
          move each job out of its inbox; the directory must be writable for the role.
        '';
      };

      environment = mkOption {
        type = types.attrsOf types.str;
        default = { };
        example = {
          CODEX_HOME = "/var/lib/agentstate/codex";
        };
        description = "Environment variables of this role, taken literally; they win over the ones for all units.";
      };

      readWritePaths = mkOption {
        type = types.listOf plainPath;
        default = [ ];
        example = [ "/srv/repositories" ];
        description = ''
          Existing directories that this role may write, beside the state directory. Everything else is read-only for
          it.
        '';
      };
    };
  };

  roleAssertions =
    name: role:
    let
      writable = roleWritable role;
      mayWrite = directory: any (path: isWithin path directory) writable;
      option = "services.agentstate.roles.${name}";
    in
    [
      {
        assertion = builtins.match "[a-z][a-z0-9_-]{0,63}" name != null && !(elem name taken);
        message = ''
          ${option}: a role's name is 1 to 64 of a-z, 0-9, _ and -, a letter first, and not `upgrade` or `maintain`.
        '';
      }
      {
        assertion = cfg.databaseUrl != null || mayWrite databaseDirectory;
        message = ''
          services.agentstate.databasePath: the role ${name} may not write the directory ${databaseDirectory},
          and SQLite makes files beside the database. Put the database below services.agentstate.stateDir, or add its
          directory to ${option}.readWritePaths.
        '';
      }
      {
        assertion = mayWrite (dirOf role.inbox);
        message = ''
          ${option}.inbox: the role may not write the directory ${dirOf role.inbox}, so that it could never take a job
          out of it and would be started again and again. Add the directory to ${option}.readWritePaths.
        '';
      }
    ];

  databaseVariables =
    option: environment:
    map
      (variable: {
        assertion = !(environment ? ${variable});
        message = "${option}: set services.agentstate.databasePath or databaseUrl instead of ${variable}.";
      })
      [
        "AGENT_DB_PATH"
        "AGENT_DB_URL"
      ];
in
{
  options.services.agentstate = {
    enable = mkEnableOption "agentstate, the durable memory of AI-agent roles";

    package = mkOption {
      type = types.package;
      default = pkgs.callPackage ./package.nix { };
      defaultText = literalExpression "pkgs.callPackage ./package.nix { }";
      description = "The package whose `agentstate` command upgrades and maintains the database.";
    };

    user = mkOption {
      type = types.str;
      default = "agentstate";
      description = "The user of every unit. The default one is created, with the state directory as its home.";
    };

    group = mkOption {
      type = types.str;
      default = "agentstate";
      description = "The group of every unit. The default one is created.";
    };

    stateDir = mkOption {
      type = plainPath;
      default = "/var/lib/agentstate";
      description = "The state directory: created with mode 0700 and writable for the upgrade and every role.";
    };

    databasePath = mkOption {
      type = plainPath;
      default = "${cfg.stateDir}/agent.db";
      defaultText = literalExpression ''"''${config.services.agentstate.stateDir}/agent.db"'';
      description = ''
        The SQLite file. Its directory must be writable for every role: the state directory is, another one has to be in
        each role's `readWritePaths`. Not used when `databaseUrl` is set.
      '';
    };

    databaseUrl = mkOption {
      type = types.nullOr types.str;
      default = null;
      example = "postgresql+psycopg:///agentstate?host=/run/postgresql";
      description = ''
        A PostgreSQL server's URL, without a password: it would be readable for everybody in the Nix store.
      '';
    };

    environment = mkOption {
      type = types.attrsOf types.str;
      default = { };
      example = {
        AGENT_DB_BUSY_TIMEOUT = "60";
      };
      description = "Environment variables of every unit, taken literally.";
    };

    roles = mkOption {
      type = types.attrsOf (types.submodule roleModule);
      default = { };
      description = "The roles: `agentstate-<name>.path` waits for a job and starts `agentstate-<name>.service`.";
    };

    maintain = {
      enable = mkEnableOption "deleting rows that are old enough, and giving their space back, by a timer";

      onCalendar = mkOption {
        type = types.str;
        default = "daily";
        example = "Sun 04:00";
        description = "When, as in systemd's `OnCalendar=`; a random part of an hour is added.";
      };
    };
  };

  config = mkIf cfg.enable {
    assertions =
      concatLists (mapAttrsToList roleAssertions cfg.roles)
      ++ databaseVariables "services.agentstate.environment" cfg.environment
      ++ concatLists (
        mapAttrsToList (
          name: role: databaseVariables "services.agentstate.roles.${name}.environment" role.environment
        ) cfg.roles
      )
      ++ optionals (cfg.databaseUrl != null) [
        {
          assertion = !(hasPrefix "sqlite" cfg.databaseUrl);
          message = "services.agentstate.databaseUrl: name an SQLite file in services.agentstate.databasePath instead.";
        }
        {
          # Says nothing of the URL itself: messages are logged.
          assertion =
            builtins.match "[^:]+://[^:/@]*:[^@]+@.*" cfg.databaseUrl == null
            && builtins.match ".*[?&]password=.*" cfg.databaseUrl == null;
          message = ''
            services.agentstate.databaseUrl: it holds a password, which everybody could read in the Nix store. Use peer
            authentication, or name a password file with PGPASSFILE in services.agentstate.environment.
          '';
        }
      ];

    environment.systemPackages = [ cfg.package ];

    users.users = optionalAttrs (cfg.user == "agentstate") {
      agentstate = {
        isSystemUser = true;
        group = cfg.group;
        home = cfg.stateDir;
        description = "agentstate roles";
      };
    };

    users.groups = optionalAttrs (cfg.group == "agentstate") { agentstate = { }; };

    systemd.tmpfiles.rules = optional (!stateIsManaged) "d ${cfg.stateDir} 0700 ${cfg.user} ${cfg.group} -";

    systemd.services = {
      agentstate-upgrade = {
        description = "Upgrade of agentstate's database schema";
        wantedBy = [ "multi-user.target" ];
        before = map (name: "agentstate-${name}.service") (builtins.attrNames cfg.roles);
        wants = optional (cfg.databaseUrl != null) "network-online.target";
        after = optionals (cfg.databaseUrl != null) [
          "network-online.target"
          "postgresql.service"
          "postgresql.target"
        ];
        environment = literally (cfg.environment // database);
        serviceConfig = serviceConfig ownWritable // {
          ExecStart = "${cfg.package}/bin/agentstate upgrade";
          RemainAfterExit = true;
        };
      };
    }
    // optionalAttrs cfg.maintain.enable {
      agentstate-maintain = {
        description = "Maintenance of agentstate's database";
        requires = [ upgradeUnit ];
        after = [ upgradeUnit ];
        environment = literally (cfg.environment // database);
        serviceConfig = serviceConfig ownWritable // {
          ExecStart = "${cfg.package}/bin/agentstate maintain";
        };
      };
    }
    // mapAttrs' (
      name: role:
      nameValuePair "agentstate-${name}" {
        description = "agentstate role ${name}";
        requires = [ upgradeUnit ];
        after = [ upgradeUnit ];
        environment = literally (cfg.environment // role.environment // database);
        # One start deals with one job, so that many short jobs are many starts: with a limit the path would fail.
        unitConfig.StartLimitIntervalSec = 0;
        serviceConfig = serviceConfig (roleWritable role) // {
          ExecStart = role.command;
          # To be stopped is no failure.
          SuccessExitStatus = "SIGTERM";
          # A job that could not be done and is back in the inbox would be started again at once.
          ExecStopPost = "/bin/sh -c '[ \"$$SERVICE_RESULT\" = success ] || exec sleep 10'";
        };
      }
    ) cfg.roles;

    systemd.timers = optionalAttrs cfg.maintain.enable {
      agentstate-maintain = {
        description = "Maintenance of agentstate's database, by the calendar";
        wantedBy = [ "timers.target" ];
        timerConfig = {
          OnCalendar = cfg.maintain.onCalendar;
          RandomizedDelaySec = "1h";
          # A machine that was off at that time makes up for it at its next start.
          Persistent = true;
        };
      };
    };

    systemd.paths = mapAttrs' (
      name: role:
      nameValuePair "agentstate-${name}" {
        description = "Jobs for the agentstate role ${name}";
        wantedBy = [ "multi-user.target" ];
        # A failed upgrade leaves the jobs where they are. And since stopping the upgrade stops the path too, a job that
        # a role puts back during a switch is not started by the units of before the switch.
        requires = [ upgradeUnit ];
        after = [ upgradeUnit ];
        # By default a path comes before paths.target, hence before every service and before the upgrade: a cycle.
        unitConfig.DefaultDependencies = false;
        conflicts = [ "shutdown.target" ];
        before = [ "shutdown.target" ];
        pathConfig.PathExistsGlob = role.inbox;
      }
    ) cfg.roles;
  };
}
