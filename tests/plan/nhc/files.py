"""
Files as sites have them, cut down to the lines that differ.

After NHC's own sample (mej/nhc, nhc.conf), the University of Colorado's (hpc-syspros-basics,
Node_Health_Check) and Azure's (azurehpc-health-checks, conf/); names are changed.
"""

SAMPLE = r"""
# NHC Configuration File (sample)
   * || export TIMEOUT=15
   * || check_hw_cpuinfo 2 12 24
   * || check_hw_physmem 32gb 32gb 5%
   * || check_hw_swap 8g 8g 3%
   * || check_hw_mem_free 1mb
   * || check_hw_ib 40
   * || check_hw_eth eth1
   * || check_fs_mount_rw -f /
   * || check_fs_mount_rw -t devpts -s '/(none|devpts)/' -f /dev/pts
   * || check_fs_free / 3%
   * || check_fs_ifree / 1k
   * || check_fs_mount -s bluearc0:/home -t nfs -o '/(^|,)vers=3(,|$)/' -f /home
   * || check_file_test -r -w -x -d -k /tmp /var/tmp
   * || check_file_contents /etc/passwd "/^root:x:0:0:/" "sshd:*"
   * || check_ps_service -u root -S sshd
   * || check_ps_blacklist sshd '!root'
   * || check_ps_loadavg $((2*HW_CORES))
   * || check_cmd_status -t 1 -r 1 selinuxenabled
"""

UNIVERSITY = r"""
* || export NHC_RM=slurm
* || check_reboot_slurm
shas* || check_hw_cpuinfo 2 24 24
/^sgpu0[1-5][01-02]/ || check_hw_cpuinfo 2 24 24
/^s(has|gpu)/ || check_hw_physmem 128gb 128gb 5%
* || check_cmd_output -t 2 -m 'NTP synchronized: yes' -e 'timedatectl'
* || check_ps_service -E '/usr/lpp/mmfs/bin/mmsysmoncontrol stop' -f -d 'mmsysmon.py' mmsysmon
* || check_ps_service -d mmfsd gpfs.mount
shas* || check_dmi_data_match "BIOS Information: Version: 2.11.0"
* || check_cmd_status -t 5 -r 0 id operator
* || check_hw_mcelog
* || check_fs_free /dev/mapper/vg_root-lv_root 5%
* || check_fs_free /dev/shm 25%
* || check_file_test -r -e -f /beegfs/active/.sentinel
* || check_fs_mount_rw -t "nfs" -s "filer1:/ifs/projects" -F "/projects"
* || check_ps_userproc_lineage log syslog
"""

CLOUD = r"""
 * || check_hw_cpuinfo 2 176 176
 * || check_hw_physmem 741357372kB 741357372kB 3%
 * || check_hw_swap 0kB 0kB 3%
 * || check_hw_ib 200 mlx5_ib0:1
 * || check_hw_eth ib0
 * || check_gpu_count 8
 * || check_nvsmi_healthmon
"""
