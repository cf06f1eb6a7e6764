#!/bin/sh
# The job that verifies one node, as `hpcverify fleet sweep` submits it. By hand:
#
#   sbatch -w NODE -p verify --exclusive --mem=0 --gpus-per-node=8 --no-requeue \
#       --output=/dev/null --export=ALL,spool=/shared/hpcverify sweep.sbatch
#
# Such a run has no ticket: it is shown, but can quarantine or release nothing.
set -u

# The submitter's environment must not influence the run or where it keeps its files. Nor may
# its functions, which bash as /bin/sh would run in place of commands.
case ${BASH_VERSION-} in
    ?*)
        unset -f declare
        # shellcheck disable=SC3044 # only bash comes here
        for name in $(declare -F); do unset -f "$name"; done # and "declare" and "-fx", which are none
        ;;
esac
umask 022
cd /
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
for name in $(env | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p'); do
    case $name in
        PATH|SLURM*|*VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|program|suite|spool) ;;
        OPTIND) ;; # dash ends if it is unset
        *) unset "$name" ;;
    esac
done
export PATH

# `hpcverify fleet sweep` writes the settings of this job below this line.

# exec lets SIGTERM reach hpcverify itself. A shell would handle it only after its child
# ends, and the user's job that preempts this one would wait for both.
# --wait: the node's last run may still be ending.
exec "${program:-hpcverify}" run --suite "${suite:-idle}" --spool "$spool" --wait 60s
