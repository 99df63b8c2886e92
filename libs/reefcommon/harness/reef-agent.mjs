// The program behind reef-AGENT: it installs a plan, checks what is installed before each start,
// offers updates, and reports on answers. It needs Node 20 and nothing else.
//
//   ROOT/plan.json        what is installed: files with their digests, place, packages
//   ROOT/plan.next.json   an installation on its way: whoever finds it finishes it
//   ROOT/home/            the agent's own folder: files of the plan, and whatever the agent writes
//   ROOT/app/             the agent, from npm, in a folder for each version
//   ROOT/version          that of the agent, if one was asked for
//   ROOT/token            readable by its owner alone
//   ROOT/lock             the process that changes any of this

import { createHash } from "node:crypto";
import { spawn, spawnSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import process from "node:process";
import readline from "node:readline/promises";
import { fileURLToPath } from "node:url";

const CHANGED = 3;
const OFFER_MS = Number(process.env.REEF_OFFER_MS) || 2000; // a start waits for Reef no longer
const LOCK_MS = 120_000; // a first installation fetches its agent meanwhile
const ANSWER_BYTES = 64 * 1024 * 1024;
const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");
// Words of a server or a release could move the cursor, and change what was printed before.
const plain = (words) => String(words).replace(/[\0-\x08\x0b-\x1f\x7f-\x9f]/g, "?");
const say = (words) => process.stderr.write(`reef: ${plain(words)}\n`);

class Refused extends Error {}

// ---------------------------------------------------------------- paths

// A service may have an empty HOME, and a path that is not whole is another one in each folder.
const local = (...parts) => path.join(os.homedir() || os.userInfo().homedir, ".local", ...parts);
const rootOf = (agent) => path.resolve(process.env.REEF_AGENTS || local("share", "reef"), agent);
const binOf = () => path.resolve(process.env.REEF_BIN || local("bin"));

const SAFE = /^(?!\/)(?!.*(?:^|\/)\.{1,2}(?:\/|$))(?!.*\/\/)[^\\\0-\x1f\x7f]+[^/\\\0-\x1f\x7f]$/;

function placeOf(home, name) {
  if (!SAFE.test(name)) throw new Refused(`a file of the plan has an unsafe path: ${JSON.stringify(name)}`);
  const parts = name.split("/");
  // A link below the folder could lead out of it.
  for (let depth = 0; depth <= parts.length; depth += 1) {
    const part = path.join(home, ...parts.slice(0, depth));
    const found = fs.lstatSync(part, { throwIfNoEntry: false });
    if (found?.isSymbolicLink()) throw new Refused(`${part} is a link: remove it, then try again`);
    if (found && depth < parts.length && !found.isDirectory()) throw new Refused(`${part} is no folder`);
    if (found && depth === parts.length && !found.isFile()) throw new Refused(`${part} is no file`);
  }
  return path.join(home, ...parts);
}

function write(file, bytes, mode = 0o600) {
  fs.mkdirSync(path.dirname(file), { recursive: true, mode: 0o700 });
  const next = `${file}.reef-next`;
  fs.rmSync(next, { force: true });
  const handle = fs.openSync(next, "wx", mode);
  try {
    fs.writeFileSync(handle, bytes); // all of it: writeSync may take a part and say nothing
    fs.fsyncSync(handle);
  } finally {
    fs.closeSync(handle);
  }
  fs.renameSync(next, file);
}

const alive = (id) => {
  try {
    return process.kill(id, 0);
  } catch (error) {
    return error.code === "EPERM";
  }
};

const pause = (ms) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);

function exclusive(root, work) {
  // Two updates at once would mix their files.
  const file = path.join(root, "lock");
  for (const end = Date.now() + LOCK_MS; ; ) {
    try {
      fs.writeFileSync(file, String(process.pid), { flag: "wx", mode: 0o600 });
      break;
    } catch (error) {
      if (error.code !== "EEXIST") throw error;
    }
    let holder = 0, age = 0;
    try {
      holder = Number(fs.readFileSync(file, "utf8"));
      age = Date.now() - fs.statSync(file).mtimeMs;
    } catch (error) {
      if (error.code === "ENOENT") continue;
      throw error;
    }
    // Without a number it is being written, unless it has been there for long.
    if (holder ? !alive(holder) : age > 5000) fs.rmSync(file, { force: true });
    else if (Date.now() > end) throw new Refused(`process ${holder} changes the installation; try again later`);
    else pause(100);
  }
  try {
    return work();
  } finally {
    fs.rmSync(file, { force: true });
  }
}

const read = (file) => (fs.existsSync(file) ? JSON.parse(fs.readFileSync(file, "utf8")) : null);

// ---------------------------------------------------------------- installing

function formed(plan) {
  // All of it before anything is written: each start reads what was installed.
  if (plan?.format !== 1) throw new Refused(`a plan of format ${plan?.format}: install again with the command`);
  const texts = ["agent", "url", "scenario", "release", "content", "digest", "program"];
  const objects = ["files", "sums", "environment"];
  const map = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
  const broken = [
    ...texts.filter((name) => typeof plan[name] !== "string"),
    ...objects.filter((name) => !map(plan[name]) || Object.values(plan[name]).some((text) => typeof text !== "string")),
    ...["packages", "headless"].filter((name) => !Array.isArray(plan[name])),
  ];
  if (broken.length) throw new Refused(`a plan without a proper ${broken.join(", ")}`);
  if (!/^[a-z][a-z0-9-]{0,40}$/.test(plan.agent)) throw new Refused("a plan for an agent of no proper name");
  if (!Buffer.from(plan.program, "base64").includes("ROOT/plan.next.json"))
    throw new Refused("a plan without the program that checks it");
  const shared = Object.values(plan.shared ?? {});
  if (!map(plan.shared ?? {}) || !shared.every(Array.isArray)) throw new Refused("a plan without proper shared files");
  const names = Object.keys(plan.files);
  const folders = new Set(names.flatMap((name) => name.split("/").map((_, i, all) => all.slice(0, i).join("/"))));
  for (const name of names) {
    if (!SAFE.test(name)) throw new Refused(`a file of the plan has an unsafe path: ${JSON.stringify(name)}`);
    if (folders.has(name)) throw new Refused(`${name} is a file and a folder of the plan`);
    if (name.length > 1000 || name.split("/").some((part) => Buffer.byteLength(part) > 200))
      throw new Refused(`a file of the plan has too long a name: ${name.slice(0, 80)}`);
  }
}

function checked(plan) {
  formed(plan);
  const names = Object.keys(plan.files).sort();
  for (const name of names) {
    if (sha256(Buffer.from(plan.files[name], "base64")) !== plan.sums[name])
      throw new Refused(`the file ${name} did not arrive as it was sent`);
  }
  const rows = names.map((name) => `${name}\n${plan.sums[name]}\n`).join("");
  if (sha256(rows) !== plan.digest) throw new Refused("the files did not arrive as they were sent");
  return plan;
}

const older = (version, least) => {
  const [ours, theirs] = [version, least].map((text) => text.replace(/^v/, "").split(".").map(Number));
  for (let i = 0; i < 3; i += 1) if (ours[i] !== theirs[i]) return ours[i] < theirs[i];
  return false;
};

function chosen(root, plan) {
  // The version that was asked for at the installation stays, as long as plans have it.
  const kept = path.join(root, "version");
  const asked = process.env.REEF_AGENT_VERSION;
  const wanted = asked || (fs.existsSync(kept) ? fs.readFileSync(kept, "utf8") : "");
  const fit = plan.packages.find((one) => one.version === wanted);
  if (asked && !fit)
    throw new Refused(
      `${plan.agent} ${asked} is unknown; there are ${plan.packages.map((one) => one.version).join(", ")}`,
    );
  return fit ?? plan.packages[0];
}

// This program waits for npm and runs nothing else: another counts the seconds beside it.
const SECONDS = `const began = Date.now(), parent = process.ppid;
setInterval(() => {
  if (process.ppid !== parent) process.exit();
  process.stderr.write("\\rreef: npm is at work, " + Math.round((Date.now() - began) / 1000) + " s ");
}, 1000);`;

function counted(work) {
  if (!process.stderr.isTTY) return work();
  const counter = spawn(process.execPath, ["-e", SECONDS], { stdio: ["ignore", "ignore", "inherit"] });
  counter.on("error", () => {});
  try {
    return work();
  } finally {
    counter.kill("SIGKILL");
    process.stderr.write("\r\x1b[K");
  }
}

function npm(folder, ...packages) {
  fs.mkdirSync(folder, { recursive: true, mode: 0o700 });
  // A user's settings may leave out the part with the program, or install elsewhere.
  const here = ["--include=optional", "--global=false"];
  const words = ["install", ...here, "--no-fund", "--no-audit", "--no-update-notifier", "--loglevel=error"];
  const all = [...words, "--prefix", folder, ...packages];
  const done = counted(() => spawnSync("npm", all, { stdio: ["ignore", "ignore", "inherit"] }));
  if (done.status !== 0) throw new Refused(`npm could not install ${packages.join(", ")}: see above`);
}

function program(root, plan) {
  // A version is whole once its mark is there: npm may be killed in the middle.
  const one = chosen(root, plan);
  const folder = path.join(root, "app", one.version);
  const mark = path.join(folder, ".complete");
  const own = Boolean(one.node) && older(process.version, one.node);
  const major = one.node.split(".")[0];
  const script = path.join(folder, "node_modules", one.name, one.program);
  if (!fs.existsSync(mark) || !fs.existsSync(script)) {
    say(`fetching ${one.name} ${one.version}${own ? ` and Node ${major}` : ""} from npm; this takes a minute`);
    const node = `node-${process.platform}-${process.arch}@${major}`;
    npm(folder, `${one.name}@${one.version}`, ...(own ? [node] : []));
    if (!fs.existsSync(script)) throw new Refused(`npm has installed no ${script}`);
    write(mark, JSON.stringify({ own }));
  }
  const alone = path.join(folder, "node_modules", `node-${process.platform}-${process.arch}`, "bin", "node");
  const node = JSON.parse(fs.readFileSync(mark, "utf8")).own ? alone : process.execPath;
  return {
    node: one.node ? node : "", // a program without Node is started as it is
    script,
    version: one.version,
  };
}

// Some agents write keys of their own into a file of the plan.
const ownKeys = (plan, name) => (Object.hasOwn(plan.shared ?? {}, name) ? plan.shared[name] : []);

function parted(text, keys) {
  const pairs = Object.entries(JSON.parse(text));
  const own = (pair) => keys.includes(pair[0]);
  return { own: Object.fromEntries(pairs.filter(own)), rest: JSON.stringify(pairs.filter((pair) => !own(pair)).sort()) };
}

function isOf(plan, name, bytes) {
  if (sha256(bytes) === plan.sums[name]) return true;
  const keys = ownKeys(plan, name);
  if (!keys.length) return false;
  try {
    return parted(bytes, keys).rest === parted(Buffer.from(plan.files[name], "base64"), keys).rest;
  } catch {
    return false; // no JSON
  }
}

function bodyOf(plan, name, there) {
  const body = Buffer.from(plan.files[name], "base64");
  try {
    const { own } = parted(there ?? "{}", ownKeys(plan, name));
    return Object.keys(own).length ? `${JSON.stringify({ ...JSON.parse(body), ...own }, null, 2)}\n` : body;
  } catch {
    return body;
  }
}

function place(root, plan) {
  // Every step may be repeated: the plan that is on its way says what was meant.
  const home = path.join(root, "home");
  const before = read(path.join(root, "plan.json"));
  const files = Object.keys(plan.files).map((name) => [placeOf(home, name), name]);
  for (const [file, name] of files) {
    const there = fs.existsSync(file) ? fs.readFileSync(file) : null;
    if (there && isOf(plan, name, there)) continue;
    if (there && !(before && Object.hasOwn(before.files, name) && isOf(before, name, there))) {
      fs.rmSync(`${file}.yours`, { force: true }); // it may be a link that leads elsewhere
      fs.copyFileSync(file, `${file}.yours`);
    }
    write(file, bodyOf(plan, name, there));
  }
  for (const name of Object.keys(before?.files ?? {})) {
    if (name in plan.files) continue;
    const file = placeOf(home, name);
    if (!fs.existsSync(file)) continue;
    if (isOf(before, name, fs.readFileSync(file))) fs.rmSync(file);
    else fs.renameSync(file, `${file}.yours`);
    for (let up = path.dirname(file); up !== home && fs.readdirSync(up).length === 0; up = path.dirname(up))
      fs.rmdirSync(up);
  }
}

function wrapper(root, plan) {
  const file = path.join(binOf(), `reef-${plan.agent}`);
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const mark = `# reef-agent of ${root}`;
  const found = fs.lstatSync(file, { throwIfNoEntry: false });
  if (found && (!found.isFile() || !fs.readFileSync(file, "utf8").includes("# reef-agent of ")))
    throw new Refused(`${file} is not Reef's: move it away, then try again`);
  const lines = [
    "#!/bin/sh",
    mark,
    `node=${quoted(process.execPath)}`,
    '[ -x "$node" ] || node=node # Node was updated, and is elsewhere now',
    `export REEF_BIN=${quoted(binOf())} # an update stays here`,
    `exec "$node" ${quoted(path.join(root, "reef-agent.mjs"))} "$@"`,
  ];
  write(file, `${lines.join("\n")}\n`, 0o755);
  return file;
}

function writable(folder, name) {
  // First of all, as npm fetches for a minute.
  try {
    fs.mkdirSync(folder, { recursive: true, mode: 0o700 });
    fs.accessSync(folder, fs.constants.W_OK);
  } catch (error) {
    const words = `nothing was installed: ${folder} cannot be written (${error.code})`;
    throw new Refused(`${words}; \`export ${name}=FOLDER\` names another folder, then the same command again`);
  }
}

function install(plan, { quiet = false } = {}) {
  checked(plan);
  const root = rootOf(plan.agent);
  writable(root, "REEF_AGENTS");
  writable(binOf(), "REEF_BIN");
  const before = read(path.join(root, "plan.json"));
  Object.keys(plan.files).forEach((name) => placeOf(path.join(root, "home"), name));
  const token = process.env.REEF_TOKEN;
  if (plan.needs_token && !token && !fs.existsSync(path.join(root, "token")))
    throw new Refused("this Reef needs a token: `export REEF_TOKEN=...`, then the same command again");
  const file = exclusive(root, () => {
    program(root, plan);
    if (process.env.REEF_AGENT_VERSION) write(path.join(root, "version"), process.env.REEF_AGENT_VERSION);
    if (token) write(path.join(root, "token"), token);
    write(path.join(root, "plan.next.json"), JSON.stringify(plan));
    finish(root);
    return wrapper(root, plan);
  });
  if (quiet) return;
  const same = before && before.digest === plan.digest && before.content === plan.content;
  const words = same ? "is current" : before ? `is updated from ${before.release}` : "is installed";
  say(`reef-${plan.agent} ${words}: release ${plan.release} of ${plan.scenario} at ${plan.url}`);
  if (!(process.env.PATH ?? "").split(":").includes(path.dirname(file)))
    say(`start it as ${file}, or add ${path.dirname(file)} to your PATH`);
}

function finish(root) {
  const next = path.join(root, "plan.next.json");
  const plan = read(next);
  if (!plan) return;
  place(root, checked(plan));
  write(path.join(root, "reef-agent.mjs"), Buffer.from(plan.program, "base64"));
  fs.renameSync(next, path.join(root, "plan.json"));
}

// ---------------------------------------------------------------- the installed agent

function changedFiles(root, plan) {
  const home = path.join(root, "home");
  return Object.keys(plan.files).filter((name) => {
    const file = placeOf(home, name);
    return !fs.existsSync(file) || !isOf(plan, name, fs.readFileSync(file));
  });
}

function tokenOf(root) {
  const file = path.join(root, "token");
  return process.env.REEF_TOKEN || (fs.existsSync(file) ? fs.readFileSync(file, "utf8") : "none");
}

async function ask(root, plan, route, { body, wait = 10_000 } = {}) {
  const answer = await fetch(`${plan.url}${route}`, {
    method: body ? "POST" : "GET",
    headers: {
      authorization: `Bearer ${tokenOf(root)}`,
      "x-reef-scenario": plan.scenario,
      ...(body ? { "content-type": "application/json" } : {}),
    },
    body: body ? JSON.stringify(body) : undefined,
    redirect: "error",
    signal: AbortSignal.timeout(wait),
  });
  const text = await bounded(answer);
  if (!answer.ok) {
    let words = text.slice(0, 300);
    try {
      words = JSON.parse(text).error.message;
    } catch {
      // another server answered
    }
    throw new Refused(`${plan.url}${route} answered ${answer.status}: ${words}`);
  }
  return JSON.parse(text);
}

async function bounded(answer) {
  const parts = [];
  let size = 0;
  for await (const part of answer.body ?? []) {
    size += part.length;
    if (size > ANSWER_BYTES) throw new Refused(`${answer.url} sends more than an answer holds`);
    parts.push(part);
  }
  return Buffer.concat(parts).toString("utf8");
}

const query = (plan) => `scenario=${encodeURIComponent(plan.scenario)}`;

async function newest(root, plan, wait) {
  const found = await ask(root, plan, `/reef/harness/releases?${query(plan)}&limit=1`, { wait });
  return { found: found.data[0] ?? null, waiting: found.pending?.[0] ?? null };
}

async function planned(root, plan, wait) {
  const next = await ask(root, plan, `/reef/harness/plan?adapter=${plan.agent}&${query(plan)}`, { wait });
  if (next?.agent !== plan.agent) throw new Refused(`the plan is not one for ${plan.agent}`);
  return next;
}

function changesOf(plan, next) {
  const names = Object.keys({ ...plan.sums, ...next.sums }).filter((name) => plan.sums[name] !== next.sums[name]);
  const how = (name) => (name in plan.sums ? (name in next.sums ? "" : " (removed)") : " (new)");
  const told = names.sort().slice(0, 6).map((name) => name + how(name));
  return [...told, ...(names.length > 6 ? [`${names.length - 6} more`] : [])].join(", ");
}

async function update(root, plan, known) {
  const next = known ?? (await planned(root, plan, 30_000));
  process.env.REEF_AGENTS = path.dirname(root); // whatever the shell names
  // The gateway may know itself by another name: the one that was installed from reaches it.
  install({ ...next, url: plan.url });
}

async function offer(root, plan, words) {
  // Reef may be away, and a start never waits for it longer than this.
  if (process.env.REEF_OFFLINE) return plan;
  let found, waiting;
  try {
    ({ found, waiting } = await newest(root, plan, OFFER_MS));
  } catch {
    return plan;
  }
  if (waiting) say(`${waiting.release_id} waits for a person: reef promote ${plan.scenario} ${waiting.release_id}`);
  if (!found || found.content_id === plan.content) return plan;
  const why = found.reason ? `: ${found.reason}` : "";
  const line = `a new harness, ${found.release_id}, is there${why}`;
  const alone = words.some((word) => plan.headless.includes(word)) || !process.stdin.isTTY || !process.stderr.isTTY;
  if (alone) {
    say(`${line} (reef-${plan.agent} update)`);
    return plan;
  }
  say(`${line}; yours is ${plan.release}`);
  let next = null;
  try {
    next = await planned(root, plan, OFFER_MS);
    say(`it changes ${changesOf(plan, next) || "no file"}`);
  } catch {
    // the update asks again, and says why
  }
  const prompt = readline.createInterface({ input: process.stdin, output: process.stderr });
  prompt.on("SIGINT", () => process.exit(130));
  const ended = new Promise((resolve) => prompt.once("close", () => resolve("no")));
  const answer = await Promise.race([prompt.question(`reef: update now? [Y/n] (later: reef-${plan.agent} update) `), ended]);
  prompt.close();
  if (/^(n|no|not .*|l|later)$/i.test(answer.trim())) return plan;
  try {
    await update(root, plan, next);
  } catch (error) {
    say(`not updated: ${error.message}`);
  }
  return read(path.join(root, "plan.json"));
}

async function start(root, plan, words) {
  const changed = changedFiles(root, plan);
  if (changed.length) {
    say(`changed since the installation: ${changed.join(", ")}`);
    say(`reef-${plan.agent} doctor restores them (yours are kept beside them)`);
    return CHANGED;
  }
  const current = await offer(root, plan, words);
  const { node, script } = program(root, current);
  const filled = (text) => text.replaceAll("{home}", path.join(root, "home")).replaceAll("{root}", root);
  const environment = Object.entries(current.environment).map(([name, text]) => [name, filled(text)]);
  const given = [...(current.arguments ?? []).map(filled), ...words];
  const child = spawn(node || script, node ? [script, ...given] : given, {
    stdio: "inherit",
    env: {
      ...process.env,
      ...Object.fromEntries(environment),
      REEF_TOKEN: tokenOf(root),
      REEF_URL: current.url,
      REEF_SCENARIO: current.scenario,
    },
  });
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
  return new Promise((resolve) => {
    child.on("error", (error) => {
      say(error.message);
      resolve(1);
    });
    child.on("exit", (code, signal) => resolve(code ?? 128 + (os.constants.signals[signal] ?? 0)));
  });
}

function doctor(root, plan) {
  const changed = changedFiles(root, plan);
  place(root, plan);
  const { node, script, version } = program(root, plan);
  say(changed.length ? `restored: ${changed.join(", ")}` : "all files are as they were installed");
  say(`${plan.agent} ${version}, ${fs.existsSync(script) ? script : "MISSING"}${node ? `, with ${node}` : ""}`);
  return fs.existsSync(script) ? 0 : 1;
}

function lastReceipt(root, plan) {
  const kept = path.join(root, "receipts");
  if (!plan.logs) return fs.existsSync(kept) ? fs.readFileSync(kept, "utf8").trim().split("\n").at(-1) : "";
  // The newest log's last id of an answer. Within a text of the log its quotes would be escaped.
  const folder = path.join(root, "home", plan.logs);
  const names = fs.existsSync(folder) ? fs.readdirSync(folder, { recursive: true }) : [];
  const logs = names.filter((name) => name.endsWith(".jsonl")).map((name) => path.join(folder, name));
  const age = new Map(logs.map((log) => [log, fs.statSync(log).mtimeMs]));
  for (const log of logs.sort((one, other) => age.get(other) - age.get(one))) {
    const found = [...fs.readFileSync(log, "utf8").matchAll(/"id": ?"(?:msg|fc)_(rec-[0-9a-f-]+)/g)];
    if (found.length) return found.at(-1)[1];
  }
  return "";
}

async function report(root, plan, words) {
  const options = { references: [] };
  for (let i = 0; i < words.length; i += 1) {
    if (words[i] === "--score") options.score = Number(words[(i += 1)]);
    else if (words[i] === "--receipt") options.references.push(words[(i += 1)]);
    else options.feedback = words.slice(i).join(" "), (i = words.length);
  }
  if (options.score === undefined && !options.feedback)
    throw new Refused(`usage: reef-${plan.agent} report [--score NUMBER] [--receipt ID] [WORDS]`);
  const last = lastReceipt(root, plan);
  if (!options.references.length && last) options.references = [last];
  if (!options.references.length) throw new Refused("there is no answer to report on yet");
  const done = await ask(root, plan, "/reef/report", { body: options });
  say(`reported on ${options.references.join(", ")}: ${done.agent_record_id}`);
}

async function versions(root, plan) {
  say(`installed: ${plan.release} of ${plan.scenario}, at ${plan.url}`);
  const found = await ask(root, plan, `/reef/harness/releases?${query(plan)}&limit=20`);
  for (const row of found.data) {
    const here = row.content_id === plan.content ? " (installed)" : "";
    process.stdout.write(plain(`${row.release_id}${here} ${row.reason ?? ""}`.trimEnd()) + "\n");
  }
}

async function main() {
  const [command, ...rest] = process.argv.slice(2);
  if (command === "install" && rest.length === 1 && path.basename(rest[0]) === "plan.json") {
    install(JSON.parse(fs.readFileSync(rest[0], "utf8")));
    return 0;
  }
  if (command === "fetch" && rest.length === 1 && path.basename(rest[0]) === "packages.json") {
    // The agent alone, for the evaluator: its files are made anew for each task.
    const plan = JSON.parse(fs.readFileSync(rest[0], "utf8"));
    process.stdout.write(JSON.stringify(program(rootOf(plan.agent), plan)) + "\n");
    return 0;
  }
  const root = path.dirname(fileURLToPath(import.meta.url));
  if (fs.existsSync(path.join(root, "plan.next.json"))) exclusive(root, () => finish(root));
  const plan = read(path.join(root, "plan.json"));
  if (!plan) throw new Refused("nothing is installed here: run the installing command again");
  if (command === "update") return (await update(root, plan)) ?? 0;
  if (command === "doctor") return doctor(root, plan);
  if (command === "report") return (await report(root, plan, rest)) ?? 0;
  if (command === "versions") return (await versions(root, plan)) ?? 0;
  return start(root, plan, process.argv.slice(2));
}

main().then(
  (code) => (process.exitCode = code),
  (error) => {
    const words = error instanceof Refused ? error.message : `${error.message} (${error.code ?? error.name})`;
    say(words);
    process.exitCode = 1;
  },
);
