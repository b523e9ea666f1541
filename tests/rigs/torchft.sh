#!/bin/bash
# Unpacks torchft 0.2.0 from PyPI: its lighthouse and manager, which run without torch. 2.5 MB down, 10 MB on disk, seconds. For CPython 3.11 to 3.13 on x86_64.
#   tests/rigs/torchft.sh FOLDER; export GANGLINE_TORCHFT=FOLDER
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 FOLDER (outside the checkout)" >&2; exit 2; }
mkdir -p "$1"
cd "$1"
python=${PYTHON:-python3}
rm -f torchft-*.whl
"$python" -m pip download --quiet --no-deps --only-binary=:all: --dest . torchft==0.2.0
"$python" -m zipfile -e torchft-*.whl .
"$python" -c 'import glob; print(glob.glob("torchft/_torchft*.so")[0])'
