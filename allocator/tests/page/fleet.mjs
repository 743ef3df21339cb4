// An allocator with a swarm of hosts, all of them processes of this repository, on loopback.

import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const ROOT = join(dirname(fileURLToPath(import.meta.url)), "../../..");
const BINARIES = process.env.RATEWRIGHT_BINARIES ?? join(process.env.CARGO_TARGET_DIR ?? join(ROOT, "target"), "debug");
const program = (name) => join(BINARIES, name);
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

export async function until(what, condition, limitMs = 30_000) {
  const end = performance.now() + limitMs;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (performance.now() > end) throw new Error(`waited ${limitMs} ms in vain: ${what}`);
    await pause(20);
  }
}

export class Fleet {
  // Starts an allocator for `racks` racks of 16 hosts under 4 spines.
  static async start({ racks }) {
    const fleet = new Fleet();
    fleet.folder = mkdtempSync(join(tmpdir(), "ratewright-page-"));
    fleet.children = [];
    fleet.hosts = 16 * racks;
    const names = Array.from({ length: fleet.hosts }, (_, i) => `--name=h${i + 1}`);
    fleet.ratewright("certs", "init", "--dir", fleet.folder);
    fleet.ratewright("certs", "issue", "--dir", fleet.folder, "--name=ratewright-allocator", ...names);
    fleet.ratewright("topology", "build", "two-tier-clos", "--racks", String(racks), "--hosts-per-rack", "16", "--spines", "4", "--output", fleet.path("topology.toml"));
    writeFileSync(fleet.path("allocator.toml"), [
      'listen = "127.0.0.1:0"', 'admin = "writable:127.0.0.1:0"', 'topology = "topology.toml"',
      "[tls]", 'ca = "ca.pem"', 'cert = "ratewright-allocator.pem"', 'key = "ratewright-allocator.key"', "",
    ].join("\n"));
    const log = fleet.path("allocator.log");
    fleet.spawn("ratewright-allocator", ["--config", fleet.path("allocator.toml")], log);
    const ready = await until("the allocator is ready", () => /listen=(\S+) admin=(?:writable:)?(\S+)/.exec(readFileSync(log, "utf8")));
    [, fleet.listen, fleet.admin] = ready;
    fleet.origin = `http://${fleet.admin}`;
    return fleet;
  }

  path(name) {
    return join(this.folder, name);
  }

  ratewright(...args) {
    return execFileSync(program("ratewright"), args, { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
  }

  spawn(name, args, log) {
    const out = openSync(log, "w");
    const child = spawn(program(name), args, { stdio: ["ignore", out, out] });
    this.children.push(child);
    return child;
  }

  // Plays all hosts, with so many flows that are replaced at random times.
  async swarm({ flows, churn, seconds }) {
    this.spawn("ratewright-bench", ["swarm", "--allocator", this.listen, "--admin", this.admin, "--cert-dir", this.folder,
      "--sessions", String(this.hosts), "--flows", String(flows), "--churn", String(churn), "--seconds", String(seconds), "--warm-up", "0"], this.path("swarm.log"));
    await until("all hosts have sessions and most flows rates", async () => {
      const overview = await this.overview();
      return overview.sessions === this.hosts && overview.flows >= 0.9 * flows;
    }, 60_000).catch((error) => {
      throw new Error(`${error.message}; ${readFileSync(this.path("swarm.log"), "utf8")}`);
    });
  }

  async overview() {
    return (await fetch(`${this.origin}/overview`)).json();
  }

  async post(path, body) {
    const answer = await fetch(`${this.origin}${path}`, { method: "POST", body: JSON.stringify(body) });
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
    return answer.json();
  }

  async stop() {
    for (const child of this.children.reverse()) {
      if (child.exitCode === null) {
        const ended = new Promise((done) => child.once("exit", done));
        child.kill("SIGKILL");
        await ended;
      }
    }
    rmSync(this.folder, { recursive: true, force: true });
  }
}
