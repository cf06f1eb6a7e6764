#!/bin/sh
# The job that verifies one node, as `hpcverify sweep` submits it. By hand:
#
#   sbatch -w NODE -p verify --exclusive --mem=0 --gpus-per-node=8 --no-requeue \
#       --output=/dev/null --export=ALL,spool=/shared/hpcverify sweep.sbatch
#
# Such a run has no token of the controller's: it shows, and releases nothing.
set -u
umask 022
cd /

# Nothing of the submitter's environment is to sway the run, or to decide where it
# keeps what.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
for name in $(env | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p'); do
    case $name in
        PATH|SLURM*|*VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|program|suite|spool) ;;
        *) unset "$name" ;;
    esac
done
export PATH

# `hpcverify sweep` writes the settings of this job below this line.

# By exec, so that SIGTERM reaches hpcverify itself: a shell would hold it back until
# its child ends, and the user's job that preempts this one would wait for both.
# A node whose last run is still ending is worth a minute's wait.
exec "${program:-hpcverify}" run --suite "${suite:-idle}" --spool "$spool" --wait 60
