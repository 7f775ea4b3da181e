// usage: build.mjs packages|daemon|minds      in Volute's unpacked source; see tree
import { cpSync, existsSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";

const steps = {
  // What daemon, command line and minds need, of the versions in Volute's lock file; nothing of the web pages.
  packages() {
    const all = JSON.parse(readFileSync("package.json", "utf-8"));
    const { "@slack/bolt": _slack, "discord.js": _discord, telegraf: _telegraf, ...needed } = all.dependencies;
    for (const name of ["tsx", "marked", "@mariozechner/pi-coding-agent"]) needed[name] = all.devDependencies[name];
    needed["@anthropic-ai/claude-agent-sdk"] = "0.2.141"; // as measured; it brings the `claude` program
    needed["@anthropic-ai/tokenizer"] = "^0.0.4";
    needed["@sinclair/typebox"] = "^0.34.0";
    const { devDependencies: _dev, workspaces: _workspaces, scripts: _scripts, ...rest } = all;
    writeFileSync("package.json", JSON.stringify({ ...rest, dependencies: needed }, null, 2));
  },

  // As `npx tsup` does it: one file each for the daemon and the command line, beside shared parts.
  async daemon() {
    const { build } = await import(`${process.cwd()}/node_modules/esbuild/lib/main.js`);
    await build({
      entryPoints: { cli: "src/cli.ts", daemon: "packages/daemon/src/daemon.ts" },
      outdir: "dist", bundle: true, splitting: true, format: "esm", platform: "node", target: "node24",
      packages: "external", logLevel: "warning",
      banner: { js: "#!/usr/bin/env node" },
      alias: {
        "@volute/daemon/lib": "./packages/daemon/src/lib", "@volute/daemon/web": "./packages/daemon/src/web",
        "@volute/daemon": "./packages/daemon/src/daemon.ts", "@volute/cli": "./packages/cli/src",
        "@volute/api": "./packages/api/src", "@volute/platforms": "./packages/platforms/src/index.ts",
        "@volute/extensions": "./packages/extensions/sdk/src/index.ts",
        ...Object.fromEntries(["notes", "pages", "plan"].map((name) =>
          [`@volute/${name}`, `./packages/extensions/${name}/src/index.ts`])),
      },
    });
    if (existsSync("skills")) cpSync("skills", "dist/skills", { recursive: true });
    writeFileSync("bin/volute", '#!/bin/sh\nexec /opt/volute/bin/node /opt/volute/dist/cli.js "$@"\n', { mode: 0o755 });
  },

  // A mind of each template, named after it, by Volute's own code. A test copies it.
  async minds() {
    const template = await import(`${process.cwd()}/packages/daemon/src/lib/template/template.ts`);
    for (const name of ["claude", "pi"]) {
      const { composedDir, manifest } = template.composeTemplate(`${process.cwd()}/templates`, name);
      const folder = `minds/${name}`;
      mkdirSync("minds", { recursive: true });
      template.copyTemplateToDir(composedDir, folder, name, manifest);
      template.applyInitFiles(folder);
      rmSync(composedDir, { recursive: true });
      symlinkSync("/opt/volute/node_modules", `${folder}/node_modules`);
    }
  },
};

await steps[process.argv[2]]();
