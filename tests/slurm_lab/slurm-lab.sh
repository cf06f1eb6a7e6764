#!/usr/bin/env bash
#
# slurm-lab.sh - a throw-away, real Slurm cluster on one machine, for tests.
#
#   LAB_DIR=/tmp/lab1 slurm-lab.sh up 4        start a fresh cluster of 4 nodes
#   LAB_DIR=/tmp/lab1 slurm-lab.sh status      its daemons, nodes and jobs
#   LAB_DIR=/tmp/lab1 slurm-lab.sh env         the line to eval in a shell
#   LAB_DIR=/tmp/lab1 slurm-lab.sh down        end all of it, jobs included
#   LAB_DIR=/tmp/lab1 slurm-lab.sh stop n3     node n3 dies (kill -9, jobs and all)
#   LAB_DIR=/tmp/lab1 slurm-lab.sh start n3    ... and comes back, newly booted
#   LAB_DIR=/tmp/lab1 slurm-lab.sh signal slurmctld KILL       crashes, STOP hangs
#
# stop and start also take slurmctld, slurmdbd, mariadbd and munged, which end in
# good order: killed, slurmctld would forget the last few seconds.
#
# Typical use:   eval "$(LAB_DIR=/tmp/lab1 slurm-lab.sh up 4)" && srun -N4 hostname
# (`up` tells what it does on stderr and prints only the env line on stdout.)
#
# One slurmctld and N slurmd (`slurmd -N <name>`), each on a port of its own on
# loopback, with a munged, key and socket of the lab's own. Nothing outside
# LAB_DIR is written, /etc/slurm and a system's munge are never used, and labs in
# different LAB_DIRs run side by side.
#
# Settings, all optional, read from the environment by `up`:
#   LAB_NODE_PREFIX=n    nodes are n1..nN
#   LAB_CPUS=4           CPUs that each node claims (need not exist)
#   LAB_MEM_MB=4000      memory that each node claims (need not exist)
#   LAB_GPUS=0           fake GPUs per node (gres gpu:fake)
#   LAB_EXTRA_CONF=FILE  lines to append to slurm.conf (Prolog=..., partitions);
#                        copied to LAB_DIR/etc/extra.conf, which can be edited
#                        later and re-read with `scontrol reconfigure`
#   LAB_HOSTNAMES=auto   1: every daemon has its own host name (a job's `hostname`
#                        prints the node's name, and node names resolve in jobs),
#                        by a UTS and a mount namespace, for which it takes root;
#                        0: never; auto: where it can be had
#   LAB_ACCOUNTING=0     1: slurmdbd on a MariaDB of the lab's own, for sacct,
#                        sacctmgr and node events (adds about 2 s and 130 MB)
#   LAB_NETWORK=FILE     each node in a network of its own (takes root): lines of
#                          NODE PID ADDRESS DATA-ADDRESS
#                        PID is a process in that network; Slurm uses ADDRESS, and
#                        the node's name means DATA-ADDRESS. The node "ctl" is the
#                        controller, in the network of `up`; its PID is "-".
#   LAB_TOPOLOGY=FILE    a topology.conf: the switches and their nodes
#   LAB_TIMEOUT=60       seconds to wait until all nodes are idle
#
# As root, jobs run as whoever submits them; as an ordinary user, as that user.
# Tested with Slurm 22.05 (Debian 12) and 24.11 (Debian 13).
# Exit status: 0 done, 1 failed, 2 wrong usage, 3 packages missing.

set -euo pipefail
shopt -s nullglob

readonly PROG=${0##*/}
say()   { printf '%s: %s\n' "$PROG" "$*" >&2; }
die()   { say "$1"; exit "${2:-1}"; }
usage() { sed -n '3,/^$/s/^# \{0,1\}//p' "$0" >&2; exit 2; }

PATH=$PATH:/usr/sbin:/sbin      # where Debian has the daemons, for non-root too

# ---------------------------------------------------------------- the place --

# Slurm and munge make unix sockets under LAB_DIR. A socket's path has at most
# 107 characters, and "spool/n200/n200_1234567.4294967291" is the longest here:
# say so now rather than let every job fail.
readonly MAX_LAB_DIR=64

set_paths() {
    [[ -n ${LAB_DIR:-} ]] || die "LAB_DIR is not set: name the lab's own directory" 2
    LAB_DIR=$(realpath -m -- "$LAB_DIR")
    [[ $LAB_DIR =~ ^/[A-Za-z0-9_./+-]+$ ]] ||
        die "LAB_DIR '$LAB_DIR' has a character that slurm.conf cannot hold" 2
    (( ${#LAB_DIR} <= MAX_LAB_DIR )) ||
        die "LAB_DIR is ${#LAB_DIR} characters long; unix sockets allow $MAX_LAB_DIR" 2
    ETC=$LAB_DIR/etc RUN=$LAB_DIR/run LOG=$LAB_DIR/log
    CONF=$ETC/slurm.conf
    export SLURM_CONF=$CONF
}

need_lab() { [[ -e $LAB_DIR/.slurm-lab ]] || die "$LAB_DIR holds no lab of mine"; }

need_packages() {
    local needs=(slurmctld:slurmctld slurmd:slurmd scontrol:slurm-client munged:munge
                 flock:util-linux unshare:util-linux) pair missing=''
    (( ! LAB_ACCOUNTING )) ||
        needs+=(slurmdbd:slurmdbd mariadbd:mariadb-server-core mariadb-admin:mariadb-client)
    for pair in "${needs[@]}"; do
        command -v "${pair%:*}" >/dev/null || [[ $missing == *" ${pair#*:}"* ]] ||
            missing+=" ${pair#*:}"
    done
    [[ -z $missing ]] || die "needs Debian packages that are not installed; install them with
  apt-get install --no-install-recommends$missing" 3
}

# ---------------------------------------------------------------- processes --

# Processes are found by what they hold, not by pid files: those outlive their
# process, pids are used again, and later versions of slurmctld and slurmd go on as
# a new process after `scontrol reconfigure`. Each daemon keeps its log in LAB_DIR
# open (and so does each slurmstepd that of its slurmd), which is also proof that it
# belongs to this very lab.
#
# Sets DAEMONS, "label pid" each, where the label is that of the log: slurmctld,
# slurmd.n1, ...; and STEPS, the same for slurmstepd.
find_daemons() {
    local file label pid comm
    DAEMONS=() STEPS=()
    # By device and inode: in another mount namespace a path may read differently.
    while read -r file label; do
        pid=${file#/proc/} pid=${pid%%/*} label=${label%.log}
        read -r comm 2>/dev/null <"/proc/$pid/comm" || continue
        case $comm in
            slurmstepd*) STEPS+=("$label $pid") ;;
            munged|mariadbd|slurmdbd*|slurmctld*|slurmd*)   # and no `tail -f`
                [[ " ${DAEMONS[*]} " == *" $label $pid "* ]] || DAEMONS+=("$label $pid") ;;
        esac
    done < <(awk 'NR == FNR { label[$2] = $1; next } $2 in label { print $1, label[$2] }' \
        <(find "$LOG" -name '*.log' -printf '%f %D:%i\n' 2>/dev/null) \
        <(find -L /proc/[0-9]*/fd -maxdepth 1 -type f -printf '%p %D:%i\n' 2>/dev/null))
}

pids_of() {     # pids of the found daemons with label $1, a pattern
    local entry
    for entry in "${DAEMONS[@]}"; do
        # shellcheck disable=SC2053
        [[ ${entry% *} != $1 ]] || echo "${entry#* }"
    done
}

# Pids of what jobs, prologs and health checks run, on all nodes or on node $1: the
# found slurmstepds, and all that has a node of this lab as SLURMD_NODENAME (the shell
# of somebody who uses the lab has none) and this lab's SLURM_CONF, or its working
# directory where Slurm passes no SLURM_CONF. Those with setsid are found as well.
job_pids() {
    local node=${1:-*} entry proc vars var name conf
    for entry in "${STEPS[@]}"; do
        # shellcheck disable=SC2053
        [[ ${entry% *} != slurmd.$node ]] || echo "${entry#* }"
    done
    for proc in /proc/[0-9]*; do
        mapfile -d '' vars <"$proc/environ" || continue
        name='' conf=''
        for var in "${vars[@]}"; do
            case $var in
                SLURMD_NODENAME=*) name=${var#*=} ;;
                SLURM_CONF=*)      conf=${var#*=} ;;
            esac
        done
        # shellcheck disable=SC2053
        [[ -n $name && $name == $node && -d $LAB_DIR/spool/$name ]] || continue
        [[ $conf != "$CONF" && ! $proc/cwd -ef $LOG ]] || echo "${proc##*/}"
    done
} 2>/dev/null

# Ask processes to end, and insist after $1 seconds.
stop_pids() {
    local end=$(( SECONDS + $1 )) pid stat left; shift
    (( $# )) || return 0
    kill -TERM "$@" 2>/dev/null || true
    while :; do
        left=()
        for pid in "$@"; do
            # a zombie has ended; who has inherited it may take its time to notice
            read -r stat 2>/dev/null <"/proc/$pid/stat" || continue
            [[ ${stat##*) } == [ZX]* ]] || left+=("$pid")
        done
        (( ${#left[@]} )) || return 0
        (( SECONDS < end )) || break
        sleep 0.05
    done
    kill -KILL "${left[@]}" 2>/dev/null || true
}

# ------------------------------------------------------------------ daemons --

# Run a command as on the host named $1: see LAB_HOSTNAMES and LAB_NETWORK.
on_host() {
    local host=$1 pid; shift
    local -a enter=()
    pid=$(awk -v node="$host" '$1 == node && $2 != "-" { print $2 }' "$ETC/network")
    [[ -z $pid ]] || enter=(nsenter --target "$pid" --net)
    if [[ -e $ETC/hosts ]]; then
        # /sys shows the network in which it is mounted; slurmd looks for cgroups there
        # shellcheck disable=SC2016
        "${enter[@]}" unshare --uts --mount sh -ec '
            hostname "$1"
            mount --bind "$2" /etc/hosts
            if [ -n "$3" ]; then
                mount -t sysfs sysfs /mnt
                mount --rbind /sys/fs/cgroup /mnt/fs/cgroup
                mount --rbind /mnt /sys
                umount --recursive /mnt
            fi
            shift 3
            exec "$@"' sh "$host" "$ETC/hosts" "$pid" "$@"
    else
        "$@"
    fi
}

# Start the daemon with label $1, with the options that follow; all of them put
# themselves into the background.
launch() {
    local label=$1 cmd end; shift
    case $label in
        munged)
            # munged refuses a path below a directory that others may write to (a
            # CI's checkout, say): right for a real key, but this one is worthless
            cmd=(munged --force --origin=127.0.0.1 --socket="$RUN/munge.sock"
                 --key-file="$ETC/munge.key" --seed-file="$RUN/munged.seed"
                 --pid-file="$RUN/munged.pid" --log-file="$LOG/munged.log") ;;
        mariadbd)
            # the exception: does not daemonize; ready when it answers
            cmd=(setsid --fork mariadbd --no-defaults --user="$(id -un)" --skip-networking
                 --datadir="$LAB_DIR/db" --socket="$RUN/db.sock" --pid-file="$RUN/mariadbd.pid"
                 --innodb-lock-wait-timeout=900 --innodb-flush-log-at-trx-commit=2
                 --innodb-log-file-size=16M --innodb-buffer-pool-size=64M) ;;
        slurmdbd)
            cmd=(on_host ctl env MYSQL_UNIX_PORT="$RUN/db.sock" slurmdbd) ;;
        slurmctld)
            cmd=(on_host ctl slurmctld) ;;
        slurmd.*)
            mkdir -p "$LAB_DIR/spool/${label#*.}"
            cmd=(on_host "${label#*.}" slurmd -N "${label#*.}" "$@") ;;
    esac
    "${cmd[@]}" </dev/null >>"$LOG/$label.log" 2>&1 || die "$label did not start: see $LOG/$label.log"

    [[ $label == mariadbd ]] || return 0
    end=$(( SECONDS + 30 ))
    until mariadb-admin --no-defaults --socket="$RUN/db.sock" ping >/dev/null 2>&1; do
        (( SECONDS < end )) || die "mariadbd does not answer: see $LOG/mariadbd.log"
        sleep 0.1
    done
}

start_accounting() {
    local end=$(( SECONDS + 30 ))
    mariadb-install-db --no-defaults --user="$(id -un)" --datadir="$LAB_DIR/db" --skip-test-db \
        --auth-root-authentication-method=normal >"$LOG/mariadbd.log" 2>&1 ||
        die "cannot make a database: see $LOG/mariadbd.log"
    launch mariadbd
    launch slurmdbd
    # Once slurmdbd answers: a cluster must be known there to be accounted for.
    until sacctmgr -in add cluster lab >/dev/null 2>&1 ||
          [[ -n $(sacctmgr -nP show cluster lab 2>/dev/null) ]]; do
        (( SECONDS < end )) || die "slurmdbd does not answer: see $LOG/slurmdbd.log"
        sleep 0.1
    done
}

# ------------------------------------------------------------ configuration --

# Can this process give each daemon a host name of its own?
can_name_hosts() {
    # shellcheck disable=SC2016
    unshare --uts --mount sh -c 'hostname lab && mount --bind "$0" /etc/hosts' \
        "$LAB_DIR/.slurm-lab" 2>/dev/null
}

# Sets HOST and ADDR, the controller's host name and address, and BIND, the slurm.conf line that keeps
# everything on loopback. With that line, daemons and srun listen on the address of
# their own host's name alone, while they reach each other at 127.0.0.1: so it is
# only for a host whose name means 127.0.0.1.
choose_host() {     # $1: number of nodes
    local addr
    [[ -z $LAB_NETWORK ]] || LAB_HOSTNAMES=1
    case $LAB_HOSTNAMES in
        0) ;;
        1) can_name_hosts || die "LAB_HOSTNAMES=1 takes root, with the right to mount" ;;
        *) can_name_hosts || LAB_HOSTNAMES=0 ;;
    esac
    HOST=$(hostname -s) ADDR=127.0.0.1
    if [[ -n $LAB_NETWORK ]]; then
        HOST=ctl ADDR=$(awk '$1 == "ctl" { print $3 }' "$ETC/network")
        { echo "127.0.0.1 localhost"; awk '{ print $4, $1 }' "$ETC/network"; } >"$ETC/hosts"
        BIND='# (each node has a network of its own: listening on all addresses)'
        return
    fi
    if [[ $LAB_HOSTNAMES != 0 ]]; then
        HOST=ctl
        { echo "127.0.0.1 localhost ctl $(node_names "$1" | tr '\n' ' ')"; cat /etc/hosts; } \
            >"$ETC/hosts"
    fi
    BIND=CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
    read -r addr _ < <(getent ahostsv4 "$(hostname)") || addr='not known'
    if [[ $addr != 127.0.0.1 ]]; then
        BIND="# (the address of this host's name is $addr: listening on all addresses)"
        say "Slurm will listen on all addresses, since that of $(hostname) is $addr"
    fi
}

# First of $1 consecutive ports that no socket uses, below the range from which
# the kernel serves itself.
free_ports() {
    local want=$1 low used=' ' file local_addr run=0 port
    read -r low _ </proc/sys/net/ipv4/ip_local_port_range
    (( low > 22000 )) || low=32768
    for file in /proc/net/tcp /proc/net/tcp6; do
        [[ -r $file ]] || continue
        while read -r _ local_addr _; do
            [[ $local_addr != *:* ]] || used+="$((16#${local_addr##*:})) "
        done < <(tail -n +2 "$file")
    done
    for (( port = 20000 + RANDOM % 1500; port < low; port++ )); do
        if [[ $used == *" $port "* ]]; then run=0; else run=$(( run + 1 )); fi
        (( run < want )) || { echo $(( port - want + 1 )); return; }
    done
    return 1
}

node_names() { local i; for (( i = 1; i <= $1; i++ )); do echo "$LAB_NODE_PREFIX$i"; done; }

range() { if (( $1 == $2 )); then echo "$1"; else echo "[$1-$2]"; fi; }

write_conf() {      # $1: number of nodes, $2: first port
    local n=$1 port=$2 k me nodes places gres='' version storage='# no accounting'
    me=$(id -un)
    nodes=$LAB_NODE_PREFIX$(range 1 "$n")
    version=$(slurmctld -V | sed 's/[^0-9]*\([0-9]*\)\.\([0-9]*\).*/\1\2/')

    head -c 128 /dev/urandom >"$ETC/munge.key"
    chmod 0400 "$ETC/munge.key"

    # slurmd wants character devices: with plain files the GPUs are counted, but
    # jobs and prologs get no CUDA_VISIBLE_DEVICES and SLURM_JOB_GPUS. It follows
    # links, so that no mknod is needed; the numbers come from the files' names.
    if (( LAB_GPUS > 0 )); then
        mkdir "$LAB_DIR/dev"
        for (( k = 0; k < LAB_GPUS; k++ )); do ln -s /dev/null "$LAB_DIR/dev/nvidia$k"; done
        gres="Gres=gpu:fake:$LAB_GPUS"
        printf '%s\n' "AutoDetect=off" "NodeName=$nodes Name=gpu Type=fake\
 File=$LAB_DIR/dev/nvidia$(range 0 $(( LAB_GPUS - 1 )))" >"$ETC/gres.conf"
    fi

    # No cgroups: they take more rights than a container has. Later versions load
    # a cgroup plugin even where nothing asks for it.
    (( version < 2311 )) || echo "CgroupPlugin=disabled" >"$ETC/cgroup.conf"

    if (( LAB_ACCOUNTING )); then
        storage="AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$(( port + n + 1 ))
AccountingStoragePass=$RUN/munge.sock
AccountingStorageTRES=gres/gpu
JobAcctGatherType=jobacct_gather/linux"
        (umask 077; cat >"$ETC/slurmdbd.conf") <<EOF
AuthType=auth/munge
AuthInfo=socket=$RUN/munge.sock
DbdHost=$HOST
DbdAddr=127.0.0.1
DbdPort=$(( port + n + 1 ))
$BIND
SlurmUser=$me
PidFile=$RUN/slurmdbd.pid
LogFile=$LOG/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct
EOF
    fi

    # not left quite empty: every command would complain of an empty file
    places="NodeName=$nodes NodeAddr=127.0.0.1 NodeHostname=localhost\
 Port=$(range $(( port + 1 )) $(( port + n )))"
    if [[ -n $LAB_NETWORK ]]; then
        places=$(awk -v port="$port" '$1 != "ctl" {
            print "NodeName=" $1, "NodeAddr=" $3, "NodeHostname=" $1, "Port=" port + 1 }' \
            "$ETC/network")
    fi
    if [[ -n $LAB_TOPOLOGY ]]; then cp -- "$LAB_TOPOLOGY" "$ETC/topology.conf"; fi

    { echo "# your own lines"; [[ -z ${LAB_EXTRA_CONF:-} ]] || cat -- "$LAB_EXTRA_CONF"; } \
        >"$ETC/extra.conf"

    cat >"$CONF" <<EOF
# Written by $PROG. Your own lines belong in extra.conf, included below.
ClusterName=lab
SlurmctldHost=$HOST($ADDR)
SlurmctldPort=$port
SlurmUser=$me
SlurmdUser=$me
AuthType=auth/munge
AuthInfo=socket=$RUN/munge.sock
$BIND

StateSaveLocation=$LAB_DIR/state
SlurmdSpoolDir=$LAB_DIR/spool/%n
SlurmctldPidFile=$RUN/slurmctld.pid
SlurmdPidFile=$RUN/slurmd.%n.pid
SlurmctldLogFile=$LOG/slurmctld.log
SlurmdLogFile=$LOG/slurmd.%n.log

# Nothing here takes cgroups, devices or a second host, and the nodes may claim
# more CPUs and memory than there are (config_overrides).
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
GresTypes=gpu
${LAB_TOPOLOGY:+TopologyPlugin=topology/tree}
$storage

# A job in "batch" preempts jobs in "verify".
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE

# Quicker than a production cluster, so that tests need not wait: jobs start
# within a second, a silent node is DOWN in half a minute to a minute, and a
# process that ignores SIGTERM is killed after 5 s (by default 3, 300 and 30 s).
ReturnToService=1
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SlurmctldTimeout=10
SlurmdTimeout=30
KillWait=5

NodeName=DEFAULT CPUs=$LAB_CPUS RealMemory=$LAB_MEM_MB $gres
$places
PartitionName=batch Nodes=ALL Default=YES PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
PartitionName=verify Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=0 MaxTime=INFINITE State=UP
Include $ETC/extra.conf
EOF
}

# -------------------------------------------------------------------- verbs --

env_line() { printf 'export SLURM_CONF=%q\n' "$CONF"; }

up() {
    local n=$1 port node end fatal idle=0 t0=${EPOCHREALTIME/[.,]/}
    [[ $n =~ ^[1-9][0-9]{0,3}$ ]] || die "up takes a number of nodes, not '$n'" 2
    : "${LAB_NODE_PREFIX:=n}" "${LAB_CPUS:=4}" "${LAB_MEM_MB:=4000}" "${LAB_GPUS:=0}"
    : "${LAB_HOSTNAMES:=auto}" "${LAB_ACCOUNTING:=0}" "${LAB_TIMEOUT:=60}"
    : "${LAB_NETWORK:=}" "${LAB_TOPOLOGY:=}"
    need_packages
    find_daemons
    (( ${#DAEMONS[@]} == 0 )) || die "a lab runs in $LAB_DIR already: '$PROG down' first"
    [[ ! -d $LAB_DIR || -e $LAB_DIR/.slurm-lab || -z $(ls -A "$LAB_DIR") ]] ||
        die "$LAB_DIR is not empty and holds no lab of mine: I will not clear it"

    # A fresh cluster: forget the state of any former one in this place.
    mkdir -p "$LAB_DIR"
    chmod 0755 "$LAB_DIR"       # other users must reach slurm.conf and munge.sock
    : >"$LAB_DIR/.slurm-lab"
    rm -rf -- "${LAB_DIR:?}"/{etc,run,log,state,spool,dev,db}
    mkdir -m 0755 "$ETC" "$RUN" "$LOG" "$LAB_DIR/state" "$LAB_DIR/spool"

    cat -- "${LAB_NETWORK:-/dev/null}" >"$ETC/network"

    # Free ports are ours only once they are bound, so one `up` at a time, by a lock
    # on /tmp itself. The daemons would inherit it with fd 9 and hold it: hence 9<&-.
    exec 9</tmp
    flock -w 300 9 || die "another '$PROG up' has been busy for 5 minutes"
    port=$(free_ports $(( n + 2 ))) || die "there are no $(( n + 2 )) free ports in a row"
    choose_host "$n"
    write_conf "$n" "$port"

    trap 'say "up failed: taking it down again, the logs stay in $LOG"; down' EXIT
    trap 'exit 130' INT TERM HUP
    {
        launch munged
        (( ! LAB_ACCOUNTING )) || start_accounting
        launch slurmctld
        for node in $(node_names "$n"); do launch "slurmd.$node"; done
    } 9<&-
    end=$(( SECONDS + LAB_TIMEOUT ))
    until idle=$(sinfo -h -p batch -t idle -o %D 2>/dev/null); [[ ${idle:-0} == "$n" ]]; do
        ! fatal=$(grep -m1 fatal: "$LOG"/slurm*.log) || die "$fatal"
        (( SECONDS < end )) ||
            die "only ${idle:-0} of $n nodes are idle after $LAB_TIMEOUT s: see $LOG"
        sleep 0.1
    done
    trap - EXIT INT TERM HUP
    exec 9<&-

    say "up: $n node(s) idle, ports $port-$(( port + n + LAB_ACCOUNTING ))," \
        "after $(( (${EPOCHREALTIME/[.,]/} - t0) / 1000 )) ms"
    env_line
}

down() {
    trap - EXIT INT TERM HUP
    need_lab
    local name count=0
    local -a pids
    # The controller first, so that nothing new is started, and munged last, since
    # the others need it to say goodbye. Jobs twice: one may be forking just now.
    for name in slurmctld 'slurmd.*' jobs jobs slurmdbd mariadbd munged; do
        find_daemons
        if [[ $name == jobs ]]; then
            mapfile -t pids < <(job_pids)
            stop_pids 1 "${pids[@]}"
        else
            mapfile -t pids < <(pids_of "$name")
            stop_pids 10 "${pids[@]}"
            count=$(( count + ${#pids[@]} ))
        fi
    done
    find_daemons
    (( ${#DAEMONS[@]} + ${#STEPS[@]} == 0 )) || die "still there: ${DAEMONS[*]} ${STEPS[*]}"
    rm -f "$RUN"/*.pid "$RUN"/*.sock*
    say "down: $count daemons ended"
}

status() {
    need_lab
    find_daemons
    (( ${#DAEMONS[@]} )) || die "nothing runs in $LAB_DIR"
    printf '%s\n' "${DAEMONS[@]%%[. ]*}" | sort | uniq -c
    timeout 15 sinfo -o '%10P %6D %14T %N'
    timeout 15 squeue -o '%8i %10P %12j %10u %12T %8M %R'
    env_line
}

label_of() {    # the label of the node or daemon that a user calls $1
    case $1 in
        munged|mariadbd|slurmdbd|slurmctld) echo "$1" ;;
        *) [[ -d $LAB_DIR/spool/$1 ]] || die "there is no node or daemon '$1'"; echo "slurmd.$1" ;;
    esac
}

stop() {
    need_lab
    local label; label=$(label_of "$1")
    local -a pids jobs
    find_daemons
    mapfile -t pids < <(pids_of "$label")
    (( ${#pids[@]} )) || die "$1 is not running"
    if [[ $label == slurmd.* ]]; then
        mapfile -t jobs < <(job_pids "$1")
        kill -KILL "${pids[@]}" "${jobs[@]}" 2>/dev/null || true
    else
        stop_pids 10 "${pids[@]}"
    fi
}

start() {
    need_lab
    local label; label=$(label_of "$1")
    find_daemons
    [[ -z $(pids_of "$label") ]] || die "$1 is running"
    if [[ $label == slurmd.* ]]; then
        # -b: tell slurmctld that the node has just booted. (Not in `up`: a node
        # that boots once slurmctld has waited for it is taken for a crashed one.)
        launch "$label" -b
    else
        launch "$label"
    fi
}

# Send signal $2 to the daemon or node $1; its jobs get none.
signal() {
    need_lab
    local label; label=$(label_of "$1")
    local -a pids
    find_daemons
    mapfile -t pids < <(pids_of "$label")
    (( ${#pids[@]} )) || die "$1 is not running"
    kill -s "$2" "${pids[@]}"
}

main() {
    local verb=${1:-} args=0
    case $verb in
        up|stop|start) args=1 ;;
        signal) args=2 ;;
        down|status|env) ;;
        *) usage ;;
    esac
    (( $# == args + 1 )) || usage
    set_paths
    case $verb in
        env) need_lab; env_line ;;
        *)   "$@" ;;
    esac
}

main "$@"
