# Shared by the scripts of all packages; `make packages` puts it at the head of each, below `version` and `store_version`. dpkg calls
# them with words, rpm with a count.

# dpkg and rpm replace files below /opt/gangline/packages, and nothing runs from there. What runs is a folder of hard links to
# them, /opt/gangline/versions/VERSION, and /opt/gangline/current leads to one. So an upgrade takes nothing from what runs, and
# one that is killed at any moment leaves a version that is whole.
tree=/opt/gangline

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

# link_package NAME: put the files of this package into the folder of its version. NAME.complete is there once all are.
link_package() {
    install -d -m 0755 "$tree/versions/$version"
    rm -f "$tree/versions/$version/$1.complete"
    if ! cp -a --link --force "$tree/packages/$1/." "$tree/versions/$version/" 2>/dev/null; then
        cp -a --remove-destination "$tree/packages/$1/." "$tree/versions/$version/"
    fi
    touch "$tree/versions/$version/$1.complete"
}

# unlink_package NAME: on removal, take its files out of all versions, before the package manager takes its own.
unlink_package() {
    for folder in "$tree"/versions/*/; do
        if [ -d "$folder" ]; then
            rm -f "$folder$1.complete"
            (cd "$tree/packages/$1" && find . ! -type d -print0) | (cd "$folder" && xargs -0 rm -f)
            find "$folder" -depth -mindepth 1 -type d -empty -delete
        fi
    done
}

# use_version: let `current` lead to this version, once every package of Gangline that is installed is in it.
use_version() {
    for part in runtime agent aggregator; do
        if [ -d "$tree/packages/$part" ] && [ ! -e "$tree/versions/$version/$part.complete" ]; then
            return 1
        fi
    done
    ln -sfn "versions/$version" "$tree/current.new"
    mv -fT "$tree/current.new" "$tree/current"
}

# after_install FIRST: FIRST is 1 at the first installation of this package. The last package of an upgrade restarts all units that run.
after_install() {
    first=$1
    if systemd_runs; then
        systemctl daemon-reload
    fi
    if ! use_version; then
        return 0 # the package that is configured last goes on
    fi
    if systemd_runs && [ "$first" != 1 ]; then
        running=
        for unit in gangline-agent.service gangline-aggregator.service gangline-backup.timer; do
            if systemctl --quiet is-active "$unit"; then
                running="$running $unit"
            fi
        done
        if [ -n "$running" ] && [ "${GANGLINE_NO_RESTART:-0}" = 1 ]; then
            echo "GANGLINE_NO_RESTART=1: the old version runs on; load the new one with: systemctl restart$running"
        elif [ -n "$running" ]; then
            # shellcheck disable=SC2086
            systemctl try-restart $running
        fi
    fi
    "$tree/bin/remove-old-versions"
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

# store_folder: where the aggregator's settings put its data.
store_folder() {
    found=
    if [ -f /etc/gangline/aggregator.toml ]; then
        found=$(sed -n 's/^[[:space:]]*data[[:space:]]*=[[:space:]]*["'"'"']\([^"'"'"']*\)["'"'"'].*/\1/p' /etc/gangline/aggregator.toml | tail -n 1)
    fi
    echo "${found:-/var/lib/gangline-aggregator}"
}

# as_user USER COMMAND...: for each step below a folder that an unprivileged user owns: root would write through a link there, or believe a
# file. The command gets neither root's environment nor its terminal, into which it could type.
as_user() {
    user=$1
    shift
    (cd / && env -i PATH="$PATH" setsid --wait runuser -u "$user" -- "$@" </dev/null)
}

# printable: what a user's command or file says, without control characters.
printable() {
    LC_ALL=C tr -cd '[:print:]\n'
}

# read_as_user USER FILE BYTES: the beginning of a regular file; nothing where it is missing or a link.
read_as_user() {
    # shellcheck disable=SC2016
    as_user "$1" timeout 60 /bin/sh -c 'if [ -f "$1" ] && [ ! -L "$1" ]; then head -c "$2" "$1"; fi' sh "$2" "$3" | printable
}

# has_service_user: without it the aggregator was never installed here.
has_service_user() {
    getent passwd gangline-aggregator >/dev/null
}

# store_version_of FOLDER: the version of the store there, as the aggregator wrote it down; 0 where it did not.
store_version_of() {
    found=
    if has_service_user; then
        found=$(read_as_user gangline-aggregator "$1/store_version" 16 | tr -cd 0-9)
    fi
    echo "${found:-0}"
}

# backup_before FOLDER VERSION: the backup from before the migration to VERSION, if it was written down, else the folder of all backups.
backup_before() {
    found=$(read_as_user gangline-aggregator "$1/backup_before_$2" 4096 | head -n 1)
    case "$found" in
        /*[!A-Za-z0-9._/-]* | [!/]*) found= ;;
    esac
    echo "${found:-/var/backups/gangline}"
}

# refuse_newer_store: before anything is unpacked, refuse a version whose aggregator could not open the store.
refuse_newer_store() {
    data=$(store_folder)
    have=$(store_version_of "$data")
    if [ "$have" -le "$store_version" ]; then
        return 0
    fi
    echo "gangline $version cannot open the store in $data: a newer version has migrated it to $have, and this one knows up to $store_version. Nothing was changed." >&2
    echo "To go back, first restore the backup from before, which loses what was stored since:" >&2
    echo "  systemctl stop gangline-aggregator" >&2
    echo "  runuser -u gangline-aggregator -- gangline admin restore --from $(backup_before "$data" "$have") --data $data --force" >&2
    exit 1
}

# back_up_store: where this version will migrate the store, back it up first, with the version that is installed. All as the user of the
# aggregator; root prints its words.
back_up_store() {
    data=$(store_folder)
    have=$(store_version_of "$data")
    if ! has_service_user || [ "$have" -ge "$store_version" ] || [ ! -x "$tree/bin/gangline" ]; then
        return 0
    fi
    # shellcheck disable=SC2016
    store=$(as_user gangline-aggregator timeout 60 /bin/sh -c '
        if [ -f "$1/gangline.duckdb" ]; then echo there; elif [ -d "$1" ] && [ ! -x "$1" ]; then echo closed; else echo none; fi
    ' sh "$data" | printable)
    if [ "$store" = none ]; then
        return 0
    fi
    if [ "${GANGLINE_NO_BACKUP:-0}" = 1 ]; then
        echo "GANGLINE_NO_BACKUP=1: the store in $data is migrated from $have to $store_version without a backup"
        return 0
    fi
    if [ "$store" != there ]; then
        echo "the store in $data cannot be looked at as the user gangline-aggregator, so nothing was upgraded. Give the folder to that user, or set GANGLINE_NO_BACKUP=1 to upgrade without a backup" >&2
        exit 1
    fi
    echo "backing up the store in $data before it is migrated from $have to $store_version"
    # shellcheck disable=SC2016
    if ! told=$(as_user gangline-aggregator /bin/sh -ec '
        GANGLINE_BACKUP_FOLDER=/var/backups/gangline
        if [ -f /etc/gangline/backup.env ]; then
            set -a
            . /etc/gangline/backup.env
        fi
        "$2/bin/gangline" admin backup --data "$1" --to "$GANGLINE_BACKUP_FOLDER"
        made=$(ls -d "$GANGLINE_BACKUP_FOLDER"/*/ | tail -n 1)
        rm -f "$1/backup_before_$3"
        echo "${made%/}" >"$1/backup_before_$3"
        echo "backed up to ${made%/}"
    ' sh "$data" "$tree" "$store_version" 2>&1); then
        echo "$told" | printable >&2
        echo "the store could not be backed up, so nothing was upgraded; the reason is above. To upgrade without a backup set GANGLINE_NO_BACKUP=1" >&2
        exit 1
    fi
    echo "$told" | printable
}
