#!/bin/sh
# Tries the packages on a host that may be thrown away (RHEL, Rocky, Alma, Ubuntu, Debian): install, first sample, doctor, upgrade, downgrade,
# removal. It prints a line for each step and at the end a row for the table in docs/install.md.
#   sudo sh packaging/try_on_host.sh OLD_FOLDER NEW_FOLDER        # each with gangline-runtime and gangline-agent as deb or rpm
set -eu

if [ $# -ne 2 ] || [ "$(id -u)" -ne 0 ]; then
    echo "usage, as root: sh $0 OLD_FOLDER NEW_FOLDER" >&2
    exit 2
fi
old=$(cd "$1" && pwd)
new=$(cd "$2" && pwd)

if command -v dnf >/dev/null; then
    kind=rpm
    files() { ls "$1"/gangline-runtime-[0-9]*.rpm "$1"/gangline-agent-[0-9]*.rpm; }
    # shellcheck disable=SC2046
    install() { dnf --assumeyes install $(files "$1"); }
    # shellcheck disable=SC2046
    downgrade() { dnf --assumeyes downgrade $(files "$1"); }
    remove() { dnf --assumeyes remove gangline-agent gangline-runtime; }
elif command -v apt-get >/dev/null; then
    kind=deb
    files() { ls "$1"/gangline-runtime_[0-9]*.deb "$1"/gangline-agent_[0-9]*.deb; }
    # shellcheck disable=SC2046
    install() { apt-get install --yes $(files "$1"); }
    # shellcheck disable=SC2046
    downgrade() { apt-get install --yes --allow-downgrades $(files "$1"); }
    remove() { apt-get remove --yes gangline-agent gangline-runtime; }
else
    echo "$0: neither dnf nor apt-get is here" >&2
    exit 2
fi
log=$(mktemp)

failed() {
    echo "FAILED at: $1; the end of $log:" >&2
    tail -n 20 "$log" >&2
    exit 1
}

step() {
    name=$1
    shift
    if ! "$@" >>"$log" 2>&1; then
        failed "$name"
    fi
    echo "ok      $name"
}

main_pid() {
    systemctl show --property=MainPID --value gangline-agent
}

# sampling: wait until the process that systemd runs now has written its status, at most 60 s.
sampling() {
    for _ in $(seq 60); do
        if grep -Eqs "\"pid\": *$(main_pid)[,}]" /run/gangline/status.json; then
            return 0
        fi
        sleep 1
    done
    return 1
}

running_version() {
    readlink "/proc/$(main_pid)/exe" | cut -d/ -f5
}

step "install" install "$old"
began=$(date +%s)
step "enable and start" systemctl enable --now gangline-agent
step "first sample" sampling
took=$(($(date +%s) - began))
first=$(running_version)
[ "$(stat -c %U "/proc/$(main_pid)")" = gangline ] || failed "the agent runs as its user"
gangline doctor || echo "note    gangline doctor found problems, above"
step "upgrade" install "$new"
step "sampling after the upgrade" sampling
second=$(running_version)
[ "$first" != "$second" ] || failed "another version runs ($first)"
step "downgrade" downgrade "$old"
step "sampling after the downgrade" sampling
[ "$first" = "$(running_version)" ] || failed "the old version runs again"
step "removal" remove
[ ! -e /opt/gangline ] || failed "/opt/gangline is gone"
[ -d /var/lib/gangline ] || failed "the state is kept"
selinux=$(getenforce 2>/dev/null || echo none)
# shellcheck disable=SC1091
echo "| $(. /etc/os-release && echo "$PRETTY_NAME"), $(uname -m), $(systemctl --version | head -n 1), SELinux $selinux | $kind: install, first sample after $took s, $first to $second and back, removal | \`packaging/try_on_host.sh\`, $(date +%F) |"
