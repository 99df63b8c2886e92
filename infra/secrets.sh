#!/bin/sh
# Writes .env and the gateway's tokens file for docker-compose.yml, with passwords of their own. Leaves alone what is there.
set -eu
cd "$(dirname "$0")/.."
umask 077

random() { od -An -N"${1:-24}" -tx1 /dev/urandom | tr -d ' \n'; }

if [ ! -e .env ]; then
    while IFS= read -r line; do
        case "$line" in
            *=generate) printf '%s=%s\n' "${line%%=*}" "$(random)" ;;
            *) printf '%s\n' "$line" ;;
        esac
    done <.env.example >.env.new
    mv .env.new .env
    echo "secrets: wrote .env"
fi

tokens=infra/secrets/tokens.yaml
if [ ! -e "$tokens" ]; then
    token="reef-$(random)"
    digest="$(printf %s "$token" | sha256sum | cut -d ' ' -f 1)"
    printf -- '- sha256: %s\n  scopes: [infer, report, read, admin]\n' "$digest" >"$tokens.new"
    chmod 644 "$tokens.new" # digests only; the gateway reads it as another user
    mv "$tokens.new" "$tokens"
    echo "secrets: wrote $tokens. The token is shown this once: $token"
fi
