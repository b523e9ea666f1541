#!/bin/sh
# STARTD_CRON script of HTCondor: what Gangline knows of this machine, as attributes of its slots (docs/batch_schedulers.md).
#   gangline_attributes.sh [FILE [HOST]]      FILE of `gangline mirror`, default /run/gangline-mirror/nodes; HOST as agents call this machine, default `hostname`
# Prints GanglineScore, GanglineBucket, GanglineReady, GanglineReason and GanglineUntil: from then on they say nothing. Without a file that is
# whole and current only `GanglineUntil = 0`, and the two policy lines act as if Gangline were not there.
file=${1:-/run/gangline-mirror/nodes}
host=${2:-$(hostname)}

nothing() {
    echo "GanglineUntil = 0"
    echo -
    exit 0
}

# A FIFO would be waited for; a link, or a file that others may write, may be planted.
[ -f "$file" ] && [ ! -L "$file" ] && [ -r "$file" ] || nothing
folder=$(dirname -- "$file")
[ -z "$(find "$folder" "$file" -maxdepth 0 -perm /022 2>/dev/null)" ] || nothing
case "$(stat -c %u -- "$file")" in 0 | "$(id -u)" | "$(stat -c %u -- "$folder")") ;; *) nothing ;; esac
size=$(wc -c < "$file") || nothing
[ "$size" -le 8732989 ] || nothing
awk -v host="$host" -v now="$(date +%s)" -v size="$size" '
    NR == 1 {
        for (at = 1; at <= NF; at++) if (split($at, pair, "=") == 2) head[pair[1]] = pair[2]
        if ($1 != "gangline-mirror" || $2 != 1 || head["file"] + 0 != size || head["valid_until"] < now || head["valid_until"] > now + 60) exit
        next
    }
    $1 == "end" { if ($2 == head["check"]) whole = 1; next }
    $1 == host && length($0) == 127 { record = $0 }
    END {
        if (!whole || record == "") { print "GanglineUntil = 0"; print "-"; exit }
        reason = substr(record, 110, 18)
        gsub(/[^A-Za-z0-9_. -]/, "", reason)
        sub(/ +$/, "", reason)
        printf "GanglineScore = %.4f\n", substr(record, 70, 8)
        printf "GanglineBucket = %d\n", substr(record, 66, 1)
        print "GanglineReady = " (substr(record, 68, 1) == "1" || head["degraded"] == "1" ? "True" : "False")
        print "GanglineReason = \"" reason "\""
        printf "GanglineUntil = %d\n", head["valid_until"]
        print "-"
    }
' "$file"
