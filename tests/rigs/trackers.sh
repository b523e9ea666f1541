#!/bin/bash
# Installs MLflow (its client, mlflow-skinny) and Weights & Biases from PyPI into a folder of their own: 60 MB down, 190 MB on disk, one to ten minutes.
#   tests/rigs/trackers.sh FOLDER; export GANGLINE_TRACKERS=FOLDER
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 FOLDER (outside the checkout)" >&2; exit 2; }
mkdir -p "$1"
"${PYTHON:-python3}" -m pip install --quiet --upgrade --target "$1" mlflow-skinny wandb
