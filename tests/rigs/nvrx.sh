#!/bin/bash
# Unpacks the launcher client of NVIDIA's resiliency extension, versions 0.6.0 and 0.7.0, and what it imports, into FOLDER. Torch is not needed, nor is a GPU.
# The wheels' tag asks for a newer glibc than Debian 12's, so pip would take an older version; the client itself is plain Python and runs here.
# 2 MB of wheels, 90 MB with what they import; under a minute.
#   tests/rigs/nvrx.sh FOLDER; export GANGLINE_NVRX=FOLDER
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 FOLDER (outside the checkout)" >&2; exit 2; }
mkdir -p "$1/wheels"
folder=$(cd "$1" && pwd)

for version in 0.6.0=3.11 0.7.0=3.12; do
    name=${version%=*}
    [ -d "$folder/$name/nvidia_resiliency_ext" ] && continue
    python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version "${version#*=}" --platform manylinux_2_39_x86_64 \
        --dest "$folder/wheels" "nvidia-resiliency-ext==$name"
    rm -rf "$folder/$name.new"
    python3 -m zipfile -e "$folder"/wheels/nvidia_resiliency_ext-"$name"-*.whl "$folder/$name.new"
    mv "$folder/$name.new" "$folder/$name"
done
if [ ! -d "$folder/site/grpc" ]; then
    rm -rf "$folder/site.new"
    python3 -m pip install --quiet --target "$folder/site.new" 'grpcio>=1.76,<2' 'protobuf>=4.22' httpx defusedxml psutil pyyaml numpy packaging nvidia-ml-py pydantic
    rm -rf "$folder/site"
    mv "$folder/site.new" "$folder/site"
fi
du -sh "$folder"
