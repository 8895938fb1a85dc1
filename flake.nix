{
  description = "The durable memory of AI-agent roles: sessions, introductions and approvals in one SQL home.";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      systems = [
        "x86_64-linux"
        "aarch64-linux"
        "aarch64-darwin"
      ];
      forEachSystem = make: nixpkgs.lib.genAttrs systems (system: make nixpkgs.legacyPackages.${system});
    in
    {
      packages = forEachSystem (pkgs: {
        default = pkgs.callPackage ./nix/package.nix { };
      });

      nixosModules.default = ./nix/module.nix;

      checks = forEachSystem (
        pkgs:
        import ./nix/checks.nix {
          inherit (pkgs)
            git
            lib
            postgresql
            sqlite
            ;
          agentstate = self.packages.${pkgs.stdenv.hostPlatform.system}.default;
        }
      );
    };
}
