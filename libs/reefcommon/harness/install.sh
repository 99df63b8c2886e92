#!/bin/sh
# Installs an agent with its harness from Reef. The whole script is one group: a connection that
# is cut off runs nothing of it.
{
set -eu
umask 077
reef_agent=@AGENT@
reef_needs() {
  command -v "$1" >/dev/null 2>&1 && return 0
  printf 'reef: nothing was installed: %s is needed, and then the same command again\n' "$2" >&2
  exit 1
}
reef_needs node "Node.js 20 or later"
reef_needs npm "npm, the package manager of Node.js"
node -e 'process.exit(parseInt(process.versions.node, 10) < 20 ? 1 : 0)' || {
  printf 'reef: nothing was installed: Node.js 20 or later is needed; this is %s\n' "$(node -v)" >&2
  exit 1
}
reef_tmp=$(mktemp -d "${TMPDIR:-/tmp}/reef-install.XXXXXX")
trap 'rm -rf "$reef_tmp"' EXIT
trap 'exit 1' HUP INT TERM
reef_decode='const fs = require("fs");
const [, to] = process.argv;
fs.writeFileSync(to, Buffer.from(fs.readFileSync(0, "latin1"), "base64"));'
node -e "$reef_decode" "$reef_tmp/plan.json" <<'REEF_END'
@PLAN@
REEF_END
node -e "$reef_decode" "$reef_tmp/reef-agent.mjs" <<'REEF_END'
@PROGRAM@
REEF_END
printf 'reef: installing %s ...\n' "$reef_agent" >&2
node "$reef_tmp/reef-agent.mjs" install "$reef_tmp/plan.json" </dev/null
exit 0
}
