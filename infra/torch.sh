#!/bin/sh
# Install torch with the given pip: torch.sh PIP [OPTION …], options of `pip install`.
#   TORCH        cpu (default) or cuda
#   TORCH_INDEX  an index URL, or a folder of wheels; empty: pip's own configuration
# Wheels beside this file are used too: the image copies infra/wheels there.
set -eu
pip=$1 version=2.13.0
shift
set -- "$@" --find-links "$(dirname "$0")"
if [ -d "${TORCH_INDEX:-}" ]; then
    set -- "$@" --find-links "$TORCH_INDEX"
elif [ -n "${TORCH_INDEX:-}" ]; then
    set -- "$@" --index-url "$TORCH_INDEX"
fi
if [ "${TORCH:-cpu}" = cpu ]; then
    "$pip" install "$@" "torch==$version+cpu" && exit 0
    # Only some registries have the build that is marked +cpu; on macOS and ARM the plain build is a CPU build.
    echo "torch: no build marked +cpu was found; taking torch $version as the registry has it." >&2
    echo "torch: on Linux x86-64 that may be the CUDA build (several GB). TORCH_INDEX can name an index or a folder with the CPU build." >&2
fi
exec "$pip" install "$@" "torch==$version"
