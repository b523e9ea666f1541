#!/bin/bash
# Installs Lightning 2.6.6 from PyPI into a folder of its own, for the torch of tests/rigs/torch.sh (Python 3.13): 10 MB down, 30 MB on disk, a minute.
#   tests/rigs/lightning.sh FOLDER; export GANGLINE_LIGHTNING=FOLDER
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 FOLDER (outside the checkout)" >&2; exit 2; }
mkdir -p "$1"
# Without what they name as needed: torch is there, and its wheel would be of CUDA.
"${PYTHON:-python3}" -m pip install --quiet --upgrade --no-deps --only-binary=:all: --python-version 3.13 --target "$1" \
    lightning==2.6.6 torchmetrics lightning-utilities fsspec packaging typing-extensions tqdm pyyaml setuptools
