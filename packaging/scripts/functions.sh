# Shared by the scripts of both packages; `make packages` puts it at the head of each. dpkg calls them with words, rpm with a count.

# True in a running systemd, not in a chroot or while an image is made.
systemd_runs() {
    [ -d /run/systemd/system ] && command -v systemctl >/dev/null
}

# make_user NAME FOLDER COMMENT: inside the build of an image, systemd-sysusers reports success and makes no user.
make_user() {
    if command -v systemd-sysusers >/dev/null && ! systemd-sysusers "$1.conf"; then
        echo "$1: systemd-sysusers failed; using useradd" >&2
    fi
    if ! getent group "$1" >/dev/null; then
        groupadd --system "$1"
    fi
    if ! getent passwd "$1" >/dev/null; then
        useradd --system --gid "$1" --home-dir "$2" --no-create-home --shell /usr/sbin/nologin --comment "$3" "$1"
    fi
}

# make_folder FOLDER MODE USER: an existing folder keeps its mode.
make_folder() {
    if [ ! -d "$1" ]; then
        install -d -m "$2" -o "$3" -g "$3" "$1"
    fi
}

# after_install FIRST UNIT...: FIRST is 1 at the first installation. Units that run are restarted by an upgrade.
after_install() {
    first=$1
    shift
    if ! systemd_runs; then
        return 0
    fi
    systemctl daemon-reload
    if [ "$first" = 1 ]; then
        return 0
    fi
    if [ "${GANGLINE_NO_RESTART:-0}" = 1 ]; then
        echo "GANGLINE_NO_RESTART=1: the old version runs on; load the new one with: systemctl restart $*"
        return 0
    fi
    systemctl try-restart "$@"
}

# before_removal UNIT...: stop them, and start them no more at boot. In a chroot systemctl removes the links alone.
before_removal() {
    if systemd_runs; then
        systemctl disable --now "$@"
    elif command -v systemctl >/dev/null; then
        systemctl disable "$@"
    fi
}

# after_removal: systemd forgets the units.
after_removal() {
    if systemd_runs; then
        systemctl daemon-reload
    fi
}

# remove_user NAME: a process that a driver holds keeps its user.
remove_user() {
    if getent passwd "$1" >/dev/null && ! userdel "$1"; then
        echo "the user $1 stays, for one of its processes still runs; remove it later with: userdel $1" >&2
    fi
}
