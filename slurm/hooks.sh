# What prolog, epilog and healthcheck share; they read it, nobody runs it.
# shellcheck shell=sh
# shellcheck disable=SC2034 # what is set here is read there
#
# slurmd gives its hooks next to no environment: neither PATH nor, for a health check,
# SLURM_CONF. Nothing here needs either, and nothing calls Slurm.
#
# The state or the spool may hang, and then not even KILL ends whoever waits there. So
# this shell looks at neither itself: a child does, holding a lock that it keeps for as
# long as it lives, and nobody waits for it longer than its time. Another hook that finds
# the lock taken starts no second child.

PATH=/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
export PATH LC_ALL
umask 022
cd / || exit 0
set -f # names of checks are split into words, and never mean files

# What the caller has set decides nothing about what we load and run: PYTHONPATH,
# LD_PRELOAD and the like. The same names stay as in sweep.sbatch.
IFS='
'
for line in $(export -p); do
    name=${line#export }
    name=${name%%=*}
    case $name in
        PATH | LC_ALL | SLURM* | *VISIBLE_DEVICES | GPU_DEVICE_ORDINAL) ;;
        SHELLOPTS | BASHOPTS) ;; # bash lets nobody unset them
        '' | [0-9]* | *[!A-Za-z0-9_]*) ;;
        *) unset "$name" ;;
    esac
done
unset IFS

SETTINGS=/etc/hpcverify/hooks.conf
LOCKS=/run/hpcverify/hooks # in memory, which does not hang, and for root alone
ASK_S=5  # for the controller's word, before a job is refused
LOOK_S=5 # for the state to answer

default_settings() {
    HPCVERIFY=/opt/hpcverify/bin/hpcverify
    HPCVERIFY_STATE=/var/lib/hpcverify
    HPCVERIFY_SPOOL=
    HPCVERIFY_DEADLINE=15
    HPCVERIFY_USERS=0
}

# Read the two files that decide what we do, in a child, since the state may hang. Both
# must be ordinary files that root alone can write, the word no longer than a word can
# be. Sets believed to whether the settings are, the four lines of the word, and now to
# the time, which is that of the file just begun. Fails if the state does not answer, or
# did not answer an earlier hook. One child for all, since to start a program takes
# longer than all the rest.
look() {
    believed='' first='' expiry='' third='' fourth='' now=''
    exec 8>>"$LOCKS/look"
    flock -w "$LOOK_S" 8 || return 1
    # shellcheck disable=SC2094 # asked for its time, and not read
    timeout -s KILL "$LOOK_S" find "$LOCKS/seen" "$settings" \
        "$HPCVERIFY_STATE/standing" -prune -type f -user 0 ! -perm /022 \
        \( -path "$LOCKS/seen" -printf '%T@\n' -o -path "$settings" -print -o \
        -size -9 -exec cat {} \; \) >"$LOCKS/seen" 2>/dev/null
    [ $? -lt 124 ] || return 1 # killed: 137
    {
        IFS= read -r now
        IFS= read -r first
        if [ "$first" = "$settings" ]; then
            believed=1 first=''
            IFS= read -r first
        fi
        IFS= read -r expiry
        IFS= read -r third
        IFS= read -r fourth
    } <"$LOCKS/seen"
    exec 8>&-
}

# Take the settings from a file, which is read and never run: KEY=value, unquoted.
# One that others than root can change is left alone.
read_settings() { # $1: the file
    settings=$1
    [ "$1" = "$SETTINGS" ] || LOCKS=$1.locks # of hooks beside those of the node
    # shellcheck disable=SC2174 # all may look at who holds the node, beside it
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
    look || exit 0
    if [ -f "$1" ] && [ -z "$believed" ]; then
        default_settings
        look || exit 0
    fi
    case $HPCVERIFY_DEADLINE in
        '' | *[!0-9]* | 0*) HPCVERIFY_DEADLINE=15 ;;
        [1-9] | [1-4][0-9]) ;;
        *) HPCVERIFY_DEADLINE=50 ;; # slurmd kills a health check after 60 s
    esac
    HPCVERIFY_LOCK=9 # the descriptor of the lock, in `verify`
    export HPCVERIFY_STATE HPCVERIFY_LOCK
}

# Is this a job of the verification itself? A held node could not be verified again if
# it was refused; and it reads all that the passive suite would, under the same lock.
is_ours() {
    case " $HPCVERIFY_USERS " in
        *" ${SLURM_JOB_UID:-nobody} "*) return 0 ;;
        *) return 1 ;;
    esac
}

# Make of the lines that look found what the controller last said of this node. Sets
# verdict, reason and checks, all empty where the file is missing, corrupt or stale, or
# where it says nothing that matters here. Keep in step with hpcverify/standing.py: a
# test holds the two together.
read_word() {
    verdict='' reason='' checks=''
    case $first in ok | quarantined | hold) ;; *) return 0 ;; esac
    case $expiry in '' | *[!0-9]* | ?????????????*) return 0 ;; esac
    case $fourth in *[!a-z0-9_\ ]*) fourth='' ;; esac
    if [ "$first" = ok ] && [ -z "$fourth" ]; then
        return 0
    fi
    [ "$expiry" -gt "${now%%.*}" ] || return 0
    verdict=$first reason=$third checks=$fourth
}

# Fetch what the controller says now, and read that. The spool may hang: what is known
# here stands then. A hook that verifies just now will fetch it as well.
ask_again() {
    [ -n "$HPCVERIFY_SPOOL" ] || return 0
    flock -w "$ASK_S" "$LOCKS/verify" timeout -s KILL "$ASK_S" \
        "$HPCVERIFY" gate --spool "$HPCVERIFY_SPOOL" </dev/null >/dev/null 2>&1
    if look; then
        read_word
    fi
}

# Run a suite, for as long as the deadline allows, unless another hook does so just now:
# then there is nothing to tell, and the status is 0. timeout(1) kills its whole group,
# itself included: a child that the kernel does not let go of holds nobody up.
#
# What we start inherits the lock, and hpcverify hands it on to its worker: whichever of
# them hangs, no other follows it.
verify() { # $1: the suite; further options
    suite=$1
    shift
    exec 9>>"$LOCKS/verify"
    flock -n 9 || return 0
    timeout -s KILL "$HPCVERIFY_DEADLINE" "$HPCVERIFY" run --suite "$suite" \
        ${HPCVERIFY_SPOOL:+--spool "$HPCVERIFY_SPOOL"} "$@" </dev/null
}

# The same, while the job goes on. In a session of its own: slurmd kills what a hook
# leaves in its process group. With standard streams of its own: slurmd waits for
# whoever holds those of the hook. The shell between is there so that the session has
# begun when we return.
verify_beside() { # $1: the suite
    set -- timeout -s KILL "$HPCVERIFY_DEADLINE" "$HPCVERIFY" run --suite "$1" \
        ${HPCVERIFY_SPOOL:+--spool "$HPCVERIFY_SPOOL"}
    # shellcheck disable=SC2016 # expanded by the shell within
    setsid sh -c '{ exec 9>>"$0" && flock -n 9 && "$@"; } </dev/null >/dev/null 2>&1 &' \
        "$LOCKS/verify" "$@"
}
