#!/bin/bash
# Unpacks promtool of Debian's package prometheus: 30 MB down, 100 MB on disk, seconds. Installs nothing into the host, and starts nothing.
#   tests/rigs/promtool.sh FOLDER; export PATH=FOLDER:$PATH
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 FOLDER (outside the checkout)" >&2; exit 2; }
mkdir -p "$1"
cd "$1"
if [ ! -x promtool ]; then
    apt-get -qq -o APT::Sandbox::User= download prometheus
    dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x --strip-components=3 ./usr/bin/promtool
    rm prometheus_*.deb
fi
./promtool --version
