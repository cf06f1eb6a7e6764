# What prolog, epilog and healthcheck share; they read it, nobody runs it.
# shellcheck shell=sh
# shellcheck disable=SC2034 # what is set here is read there
#
# slurmd gives its hooks next to no environment: neither PATH nor, for a health check,
# SLURM_CONF. Nothing here needs either, and nothing calls Slurm.

PATH=/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
export PATH LC_ALL
umask 022
cd / || exit 0
set -f # names of checks are split into words, and never mean files

SETTINGS=/etc/hpcverify/hooks.conf
NEWLINE='
'
ASK_S=5 # for the controller's word, before a job is refused

default_settings() {
    HPCVERIFY=/opt/hpcverify/bin/hpcverify
    HPCVERIFY_STATE=/var/lib/hpcverify
    HPCVERIFY_SPOOL=
    HPCVERIFY_DEADLINE=15
    HPCVERIFY_USERS=0
}

# Which of the two files that we read may be believed: ordinary files both, the settings
# root's alone, the word no longer than a word can be. One question for both, since to
# start a program takes longer than all the rest.
believe() { # $1: the settings
    exec find "$1" "$HPCVERIFY_STATE/standing" -prune -type f \
        \( -path "$1" -user 0 ! -perm /022 -o ! -path "$1" -size -9 \) 2>/dev/null
}

# Take the settings from a file, which is read and never run: KEY=value, unquoted.
# One that others than root can change is left alone.
read_settings() { # $1: the file
    settings=$1
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
    believed=$NEWLINE$(believe "$1")$NEWLINE
    case $believed in
        *"$NEWLINE$1$NEWLINE"*) ;;
        *)
            default_settings
            believed=$NEWLINE$(believe "$1")$NEWLINE
            ;;
    esac
    case $HPCVERIFY_DEADLINE in
        '' | *[!0-9]* | 0*) HPCVERIFY_DEADLINE=15 ;;
        [1-9] | [1-4][0-9]) ;;
        *) HPCVERIFY_DEADLINE=50 ;; # slurmd kills a health check after 60 s
    esac
    export HPCVERIFY_STATE
}

# Is this a job of the verification itself? A held node could not be verified again if
# it was refused; and it reads all that the passive suite would, under the same lock.
is_ours() {
    case " $HPCVERIFY_USERS " in
        *" ${SLURM_JOB_UID:-nobody} "*) return 0 ;;
        *) return 1 ;;
    esac
}

# Read what the controller last said of this node, after the settings. Sets verdict,
# reason and checks, all empty where the file is missing, corrupt or stale, or where it
# says nothing that matters here. Keep in step with hpcverify/standing.py: a test holds
# the two together.
read_word() {
    verdict='' reason='' checks=''
    file=$HPCVERIFY_STATE/standing
    case $believed in *"$NEWLINE$file$NEWLINE"*) ;; *) return 0 ;; esac
    first='' expiry='' third='' fourth=''
    {
        IFS= read -r first
        IFS= read -r expiry
        IFS= read -r third
        IFS= read -r fourth
    } <"$file"
    case $first in ok | quarantined | hold) ;; *) return 0 ;; esac
    case $expiry in '' | *[!0-9]* | ?????????????*) return 0 ;; esac
    case $fourth in *[!a-z0-9_\ ]*) fourth='' ;; esac
    if [ "$first" = ok ] && [ -z "$fourth" ]; then
        return 0
    fi
    [ "$expiry" -gt "$(date +%s)" ] || return 0
    verdict=$first reason=$third checks=$fourth
}

# Fetch what the controller says now, and read that. The spool may hang: what is known
# here stands then.
ask_again() {
    [ -n "$HPCVERIFY_SPOOL" ] || return 0
    timeout -s KILL "$ASK_S" "$HPCVERIFY" gate --spool "$HPCVERIFY_SPOOL" \
        </dev/null >/dev/null 2>&1
    believed=$NEWLINE$(believe "$settings")$NEWLINE
    read_word
}

# Run a suite, for as long as the deadline allows. timeout(1) kills its whole group,
# itself included: a child that the kernel does not let go of holds nobody up.
verify() { # $1: the suite; further options
    suite=$1
    shift
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
    setsid sh -c '"$@" </dev/null >/dev/null 2>&1 &' sh "$@"
}
