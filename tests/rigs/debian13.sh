#!/bin/bash
# Makes a Debian 13 in FOLDER, and installs there what Debian 12 does not have: HTCondor 23.9 (`condor`), torch 2.6 with NVIDIA's launcher 0.7 (`torch`).
# Needs root, debootstrap, unshare. 0.2 GB and three minutes; condor 0.2 GB and two minutes; torch 1.1 GB and three. Nothing goes into the host.
#   tests/rigs/debian13.sh FOLDER condor torch; export GANGLINE_DEBIAN13=FOLDER
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: $0 FOLDER (outside the checkout) [condor] [torch]" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
[ -x "$folder/usr/bin/apt-get" ] || debootstrap --variant=minbase trixie "$folder" "${MIRROR:-http://deb.debian.org/debian}"
cp /etc/resolv.conf "$folder/etc/resolv.conf"
printf '#!/bin/sh\nexit 101\n' > "$folder/usr/sbin/policy-rc.d"   # no service is started by its package
chmod +x "$folder/usr/sbin/policy-rc.d"

# In a mount namespace of its own: nothing stays mounted.
inside() {
    DEBIAN_FRONTEND=noninteractive unshare --mount sh -c 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"' "$folder" "$@"
}
inside apt-get -qq update
for part in "$@"; do
    case $part in
        condor) inside apt-get -qq install --yes --no-install-recommends condor ;;
        torch)
            inside apt-get -qq install --yes --no-install-recommends python3-torch
            mkdir -p "$folder/srv/nvrx"
            [ -d "$folder/srv/nvrx/site" ] || python3 -m pip install --quiet --target "$folder/srv/nvrx/site" --python-version 3.13 --only-binary=:all: \
                'grpcio>=1.76,<2' 'protobuf>=4.22' httpx defusedxml psutil pyyaml packaging nvidia-ml-py pydantic setproctitle
            if [ ! -d "$folder/srv/nvrx/0.7.0" ]; then
                python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_39_x86_64 \
                    --dest "$folder/srv/nvrx" nvidia-resiliency-ext==0.7.0
                python3 -m zipfile -e "$folder"/srv/nvrx/nvidia_resiliency_ext-0.7.0-*.whl "$folder/srv/nvrx/0.7.0"
            fi ;;
        *) echo "$0: no part $part: condor, torch" >&2; exit 2 ;;
    esac
done
du -sh "$folder"
