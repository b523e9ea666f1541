#!/bin/sh
# Prolog, Epilog and HealthCheckProgram of Slurm around `gangline check` (docs/slurm_plugins.md). One file, three lines of slurm.conf:
#
#     Prolog=/etc/slurm/node_check.sh
#     Epilog=/etc/slurm/node_check.sh
#     HealthCheckProgram=/etc/slurm/node_check.sh
#
# Only exit code 10 of `gangline check` acts: it drains this node with a reason of ours. A command that is missing, killed, half
# upgraded or too slow drains nothing, and neither does a fault of this script. A drain of somebody else's is left as it is.

# Your choices. SLURM_CONF only where it is not in Slurm's own place: a HealthCheckProgram is not told.
: "${GANGLINE:=gangline}"
: "${GANGLINE_STATE_FOLDER:=/run/gangline-slurm}"
#export SLURM_CONF=/etc/slurm/slurm.conf

PATH="${PATH:-/bin}:/usr/local/bin:/usr/bin:/bin"
export PATH
unset SLURM_TIME_FORMAT
CHECK_SECONDS=5
SCONTROL_SECONDS=10
#: What ends the reasons that this script sets, and nobody else.
MARK=';by=check'

node="$SLURMD_NODENAME"
seen="$GANGLINE_STATE_FOLDER/$node"

# Sets $state and $reason to what Slurm says of this node, and $set_at to when the reason was set. Fails without an answer.
ask_slurm() {
	line=$(timeout "$SCONTROL_SECONDS" scontrol -o show node "$node" 2>/dev/null) || return 1
	state=$(printf '%s\n' "$line" | sed -n 's/.* State=\([^ ]*\) .*/\1/p')
	reason=$(printf '%s\n' "$line" | sed -n 's/.* Reason=\(.*\) \[[^]]*@[^]]*\].*/\1/p')
	set_at=$(printf '%s\n' "$line" | sed -n 's/.* Reason=.* \[[^]]*@\([^]]*\)\].*/\1/p')
	[ -n "$state" ]
}

is_drained() {
	case "$state" in *DRAIN* | DOWN* | *FAIL*) return 0 ;; esac
	return 1
}

# Whether the reason is one that this script has set.
is_ours() {
	case "$reason" in 'gangline:v1;'*"$MARK") return 0 ;; esac
	return 1
}

# The value of a field of the reason.
field() {
	printf '%s\n' "$reason" | tr ';' '\n' | sed -n "s/^$1=//p"
}

# The reason is older than its ttl, or than half of it ($1: 2), or cannot be told.
is_older_than_ttl() {
	ttl=$(field ttl)
	at=$(date -d "$set_at" +%s 2>/dev/null) || return 0
	case "$ttl" in '' | *[!0-9]*) return 0 ;; esac
	[ $(($(date +%s) - at)) -gt $((ttl / $1)) ]
}

# Drains this node, unless somebody has: his reason stays. Renews ours in time.
drain() {
	if ask_slurm && is_drained; then
		is_ours || return 0
		is_older_than_ttl 2 || return 0
	fi
	timeout "$SCONTROL_SECONDS" scontrol update nodename="$node" state=drain reason="$1$MARK" && forget
}

# After a start of the host, and after each drain, Slurm is asked what is set; else a file says that nothing is.
forget() {
	! is_folder_ours || rm -f "$seen"
}

# Whether the folder is ours: in one of another user the file could be a link, or planted.
is_folder_ours() {
	[ -d "$GANGLINE_STATE_FOLDER" ] && [ ! -L "$GANGLINE_STATE_FOLDER" ] && [ -O "$GANGLINE_STATE_FOLDER" ] &&
		[ -z "$(find "$GANGLINE_STATE_FOLDER" -maxdepth 0 -perm /022)" ]
}

remember() {
	[ -d "$GANGLINE_STATE_FOLDER" ] || mkdir -m 700 "$GANGLINE_STATE_FOLDER" 2>/dev/null
	is_folder_ours && : >"$seen" 2>/dev/null
}

# Takes back what this script has set: once the host no longer has the fault, or nothing is known of it for as long as was said.
take_back() {
	is_folder_ours && [ -e "$seen" ] && return
	ask_slurm || return
	if ! is_drained || ! is_ours; then
		remember
		return
	fi
	shown=$(timeout "$CHECK_SECONDS" "$GANGLINE" check --for healthcheck --json 2>/dev/null)
	[ $? -eq 0 ] || shown=''
	cause=$(field cause)
	gone=no
	case "$shown" in
	*'"known": true'*)
		gone=yes
		case "$shown" in *"\"name\": \"$cause\""*) gone=no ;; esac
		;;
	esac
	if [ "$gone" = yes ] || is_older_than_ttl 1; then
		timeout "$SCONTROL_SECONDS" scontrol update nodename="$node" state=undrain
	fi
}

[ -n "$node" ] || exit 0
reason_to_drain=$(timeout "$CHECK_SECONDS" "$GANGLINE" check --for healthcheck 2>/dev/null)
code=$?
case "$reason_to_drain" in 'gangline:v1;'*) ;; *) code=0 ;; esac
if [ "$code" -eq 10 ]; then
	drain "$reason_to_drain"
	case "$SLURM_SCRIPT_CONTEXT" in
	prolog_* | epilog_*) exit 1 ;; # the job is requeued, or has ended
	esac
elif [ -z "$SLURM_SCRIPT_CONTEXT" ]; then
	take_back
fi
exit 0
