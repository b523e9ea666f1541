#!/bin/bash
# Unpacks Debian 13's torch 2.6 for CPUs, with its Python 3.13, into FOLDER: 200 MB down, 1 GB on disk, one to three minutes.
# Needs mmdebstrap and debian-archive-keyring. Runs no script of a package and mounts nothing: FOLDER/python starts it, also not as root.
#   tests/rigs/torch.sh FOLDER; export GANGLINE_TORCH=FOLDER/python
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 FOLDER (outside the checkout)" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
mode=unshare
[ "$(id -u)" -eq 0 ] && mode=root
if [ ! -e "$folder/root/usr/bin/torchrun" ]; then
    rm -rf "$folder"/root{,.new}
    mmdebstrap --quiet --mode=$mode --variant=extract --include=python3-torch,ca-certificates trixie "$folder/root.new" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
    mv "$folder/root.new" "$folder/root"
fi
cat > "$folder/python" <<END
#!/bin/sh
root='$folder/root'
libraries=\$root/usr/lib/x86_64-linux-gnu
export PYTHONHOME="\$root/usr" PYTHONPATH="\$root/usr/lib/python3/dist-packages\${PYTHONPATH:+:\$PYTHONPATH}"
exec "\$libraries/ld-linux-x86-64.so.2" --argv0 '$folder/python' \\
    --library-path "\$root/usr/lib:\$libraries:\$libraries/openblas-pthread:\$libraries/blas:\$libraries/lapack" "\$root/usr/bin/python3.13" "\$@"
END
chmod +x "$folder/python"
"$folder/python" -c 'import torch; print("torch", torch.__version__)'
