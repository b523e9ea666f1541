#!/bin/sh
# Removes versions of Gangline that no process runs any more. The scripts of the packages call it after an upgrade; where a process of an
# old version has not ended (a sampler may hang in a driver for days), it leaves that version, says so, and waits in the background.
#   /opt/gangline/bin/remove-old-versions [--wait]
set -e
tree=/opt/gangline

# user_of FOLDER: a process that runs from there, or nothing. It reads no memory map: that may hang where a driver does. The program has to
# be the very file: a container has paths of the same name.
user_of() {
    for process in /proc/[0-9]*; do
        program=$(readlink "$process/exe" 2>/dev/null || echo none)
        case "$program" in
            "$1"/*)
                if [ "$process/exe" -ef "$program" ]; then
                    echo "${process#/proc/}"
                    return
                fi
                ;;
        esac
    done
}

# remove_unused: prints one line for each old version that stays.
remove_unused() {
    current=$(readlink "$tree/current" || echo none)
    for folder in "$tree"/versions/*; do
        if [ -d "$folder" ] && [ "$folder" != "$tree/$current" ]; then
            process=$(user_of "$folder")
            if [ -z "$process" ]; then
                rm -rf "$folder"
            else
                echo "${folder##*/} stays until its last process ends: $process"
            fi
        fi
    done
}

left=$(remove_unused)
if [ -z "$left" ]; then
    exit 0
fi
if [ "$1" = --wait ]; then
    while [ -n "$left" ]; do
        sleep 60
        left=$(remove_unused)
    done
    exit 0
fi
echo "$left"
if [ -d /run/systemd/system ] && command -v systemd-run >/dev/null && ! systemctl --quiet is-active gangline-old-versions.service; then
    systemd-run --quiet --collect --unit=gangline-old-versions "$tree/bin/remove-old-versions" --wait
fi
