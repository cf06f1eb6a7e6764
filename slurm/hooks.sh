# Shared by prolog, epilog and healthcheck, which source it.
# shellcheck shell=sh
# shellcheck disable=SC2034 # what is set here is read there
#
# slurmd gives its hooks almost no environment: no PATH, and a health check gets no
# SLURM_CONF either. Nothing here needs them, and nothing calls Slurm.
#
# The state directory or the spool may hang. A process that waits there cannot be killed,
# so this shell touches neither. A child does, with a time limit, and holds a lock for as
# long as it lives. Another hook that finds the lock taken starts no second child.

set -f # names of checks are split at spaces and never expand to files

# bash as /bin/sh takes functions from the caller, and runs one in place of any command but
# the special ones, such as unset. sweep.sbatch does the same.
case ${BASH_VERSION-} in
    ?*)
        unset -f declare
        IFS='
'
        # shellcheck disable=SC3044 # only bash comes here
        for line in $(declare -F); do unset -f "${line##* }"; done
        unset IFS
        ;;
esac

PATH=/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
export PATH LC_ALL
umask 022
cd / || exit 0

# Drop PYTHONPATH, LD_PRELOAD and the like: the caller must not decide what we load.
# sweep.sbatch keeps the same names.
IFS='
'
for line in $(export -p); do
    name=${line#export }
    name=${name%%=*}
    case $name in
        PATH | LC_ALL | SLURM* | *VISIBLE_DEVICES | GPU_DEVICE_ORDINAL) ;;
        SHELLOPTS | BASHOPTS | OPTIND) ;; # bash lets nobody unset the first two, and dash ends
        '' | [0-9]* | *[!A-Za-z0-9_]*) ;;
        *) unset "$name" ;;
    esac
done
unset IFS

SETTINGS=/etc/hpcverify/hooks.conf
LOCKS=/run/hpcverify/hooks # in memory, which does not hang; only root may enter
GATE_S=5 # to fetch the gate file from the spool before a job is refused
READ_S=5 # to read from the state directory

default_settings() {
    HPCVERIFY=/opt/hpcverify/bin/hpcverify
    HPCVERIFY_STATE=/var/lib/hpcverify
    HPCVERIFY_SPOOL=
    HPCVERIFY_DEADLINE=50
    HPCVERIFY_USERS=0
}

# Read the settings and the gate file in a child, since the state directory may hang.
# Both must be regular files that only root can write; the gate file must be small. Sets
# trusted (may the settings be used?), the four lines of the gate file, and now: the time
# stamp of a file just written. Fails if the state directory does not answer this hook,
# or has not answered an earlier one. One child does it all: starting a program takes
# longer than everything else here.
read_files() {
    trusted='' state_line='' until_line='' reason_line='' checks_line='' now=''
    exec 8>>"$LOCKS/look"
    flock -w "$READ_S" 8 || return 1
    # shellcheck disable=SC2094 # only its time stamp is read
    timeout -s KILL "$READ_S" find "$LOCKS/seen" "$settings" \
        "$HPCVERIFY_STATE/gate" -prune -type f -user 0 ! -perm /022 \
        \( -path "$LOCKS/seen" -printf '%T@\n' -o -path "$settings" -print -o \
        -size -9 -exec cat {} \; \) >"$LOCKS/seen" 2>/dev/null
    [ $? -lt 124 ] || return 1 # killed: 137
    {
        IFS= read -r now
        IFS= read -r state_line
        if [ "$state_line" = "$settings" ]; then
            trusted=1 state_line=''
            IFS= read -r state_line
        fi
        IFS= read -r until_line
        IFS= read -r reason_line
        IFS= read -r checks_line
    } <"$LOCKS/seen"
    exec 8>&-
}

# Read the settings, KEY=value without quotes. The file is never executed, and is ignored
# if anyone but root can change it.
read_settings() { # $1: the file
    settings=$1
    [ "$1" = "$SETTINGS" ] || LOCKS=$1.locks # hooks of a test do not wait for those of the node
    # shellcheck disable=SC2174 # /run/hpcverify itself is readable: it shows who holds the node
    [ -d "$LOCKS" ] || mkdir -p -m 0700 "$LOCKS"
    default_settings
    if [ -f "$1" ]; then
        while IFS='=' read -r key value || [ -n "$key" ]; do
            case $key in
                HPCVERIFY) HPCVERIFY=$value ;;
                HPCVERIFY_STATE) HPCVERIFY_STATE=$value ;;
                HPCVERIFY_SPOOL) HPCVERIFY_SPOOL=$value ;;
                HPCVERIFY_DEADLINE) HPCVERIFY_DEADLINE=$value ;;
                HPCVERIFY_USERS) HPCVERIFY_USERS=$value ;;
            esac
        done <"$1"
    fi
    read_files || exit 0
    if [ -f "$1" ] && [ -z "$trusted" ]; then
        default_settings
        read_files || exit 0
    fi
    case $HPCVERIFY_DEADLINE in
        '' | *[!0-9]* | 0*) HPCVERIFY_DEADLINE=50 ;;
        [1-9] | [1-4][0-9]) ;;
        *) HPCVERIFY_DEADLINE=50 ;; # slurmd kills a health check after 60 s
    esac
    HPCVERIFY_LOCK=9 # the descriptor of the lock, in `verify`
    export HPCVERIFY_STATE HPCVERIFY_LOCK
}

# Is this one of our own verification jobs? If the prolog refused it, a held node could
# never be verified again. It needs no passive suite: it reads the same itself.
is_ours() {
    case " $HPCVERIFY_USERS " in
        *" ${SLURM_JOB_UID:-nobody} "*) return 0 ;;
        *) return 1 ;;
    esac
}

# Parse the gate file: the controller's last decision about this node. Sets verdict,
# reason and checks; all are empty if the file is missing, corrupt or expired, or if jobs
# may simply run. hpcverify/gate.py parses the same format, and a test compares the two.
parse_gate() {
    verdict='' reason='' checks=''
    case $state_line in ok | quarantined | hold) ;; *) return 0 ;; esac
    case $until_line in '' | *[!0-9]* | ?????????????*) return 0 ;; esac
    case $checks_line in *[!a-z0-9_\ ]*) checks_line='' ;; esac
    if [ "$state_line" = ok ] && [ -z "$checks_line" ]; then
        return 0
    fi
    [ "$until_line" -gt "${now%%.*}" ] || return 0
    verdict=$state_line reason=$reason_line checks=$checks_line
}

# Fetch the latest gate file from the spool. If the spool hangs, the local copy counts.
# A hook that is running the passive suite holds the lock, and fetches the file itself.
refresh_gate() {
    [ -n "$HPCVERIFY_SPOOL" ] || return 0
    flock -w "$GATE_S" "$LOCKS/verify" timeout -s KILL "$GATE_S" \
        "$HPCVERIFY" gate --spool "$HPCVERIFY_SPOOL" </dev/null >/dev/null 2>&1
    if read_files; then
        parse_gate
    fi
}

# Take one of the few places in the spool for nodes that refuse jobs by themselves.
# Without one the job starts: so an error on all nodes at once drains only a few of them.
take_place() {
    [ -n "$HPCVERIFY_SPOOL" ] || return 1
    exec 9>&- # of `verify`
    flock -w "$GATE_S" "$LOCKS/verify" timeout -s KILL "$GATE_S" \
        "$HPCVERIFY" gate --spool "$HPCVERIFY_SPOOL" --take-place </dev/null >/dev/null 2>&1
}

# Run a suite, for as long as the deadline allows. If another hook is running one, do
# nothing and return 0. timeout(1) kills its whole process group, itself included, so a
# child that cannot be killed delays nobody.
#
# The suite inherits the lock, and hpcverify passes it to its worker: if one of them
# hangs, no further one is started.
verify() { # $1: the suite; further options
    suite=$1
    shift
    exec 9>>"$LOCKS/verify"
    flock -n 9 || return 0
    timeout -s KILL "$HPCVERIFY_DEADLINE" "$HPCVERIFY" run --suite "$suite" \
        ${HPCVERIFY_SPOOL:+--spool "$HPCVERIFY_SPOOL"} "$@" </dev/null
}

# The same in the background. It needs a session of its own, because slurmd kills what a
# hook leaves in its process group, and standard streams of its own, because slurmd waits
# for every process that holds those of the hook. The shell in between makes sure that
# the session exists when we return.
verify_in_background() { # $1: the suite
    set -- timeout -s KILL "$HPCVERIFY_DEADLINE" "$HPCVERIFY" run --suite "$1" \
        ${HPCVERIFY_SPOOL:+--spool "$HPCVERIFY_SPOOL"}
    # shellcheck disable=SC2016 # expanded by the shell within
    setsid sh -c '{ exec 9>>"$0" && flock -n 9 && "$@"; } </dev/null >/dev/null 2>&1 &' \
        "$LOCKS/verify" "$@"
}
