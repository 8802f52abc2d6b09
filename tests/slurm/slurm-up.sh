#!/usr/bin/env bash
# A private Slurm on one machine: munged, slurmctld and N slurmd, all below one folder. No root, no systemd, nothing
# outside the folder. Debian/Ubuntu packages: slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins.
#
#   slurm-up.sh FOLDER [--nodes N] [--cpus N] [--gpus N] [--mem MB] [--port P] [--task none|affinity] [--accounting 1]
#   . FOLDER/env            # SLURM_CONF and PATH
#   slurm-down.sh FOLDER
set -euo pipefail

folder=$(realpath -m "${1:?usage: slurm-up.sh FOLDER [options]}")
shift
nodes=2 cpus=4 gpus=1 mem=4000 port=17000 task=none accounting=0
while [ $# -gt 1 ]; do
  case $1 in
    --nodes) nodes=$2 ;; --cpus) cpus=$2 ;; --gpus) gpus=$2 ;; --mem) mem=$2 ;; --port) port=$2 ;;
    --task) task=$2 ;; --accounting) accounting=$2 ;;
    *) echo "slurm-up.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done

export PATH=$PATH:/usr/sbin
for program in munged slurmctld slurmd sinfo; do
  command -v "$program" >/dev/null || { echo "slurm-up.sh: $program is not installed" >&2; exit 3; }
done
if [ -e "$folder/pids" ]; then echo "slurm-up.sh: already up: $folder" >&2; exit 1; fi
mkdir -p "$folder"/{munge,state,spool,log,run}
chmod 755 "$folder" "$folder"/*
: > "$folder/pids"
user=$(id -un) host=$(hostname -s)

# munge wants a key that only its own user can read, and its own socket.
(umask 077; head -c 1024 /dev/urandom > "$folder/munge/key")
munged --key-file="$folder/munge/key" --socket="$folder/munge/socket" --pid-file="$folder/munge/pid" \
  --log-file="$folder/munge/log" --seed-file="$folder/munge/seed"
echo "munged $(cat "$folder/munge/pid")" >> "$folder/pids"

# cred_expire: a requeued job may start again six seconds later, instead of two minutes.
# linuxproc and no task plugin: work in any container; memory limits are not enforced. Affinity binds jobs to CPUs, so
# its nodes may have no more of them than the machine.
# With accounting (packages slurmdbd slurm-wlm-mysql-plugin mariadb-server) the controller forgets jobs at once.
accounts=AccountingStorageType=accounting_storage/none age=300
if [ "$accounting" != 0 ]; then
  accounts="AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$((port + 1))
AccountingStoragePass=$folder/munge/socket"
  age=2
fi
cat > "$folder/slurm.conf" <<CONF
ClusterName=private
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/run/slurmctld.pid
SlurmdPidFile=$folder/run/slurmd-%n.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/$task
JobAcctGatherType=jobacct_gather/none
$accounts
JobCompType=jobcomp/none
MailProg=/bin/true
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=0,batch_sched_delay=0,sched_interval=2,defer_batch
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=5
MinJobAge=$age
GresTypes=gpu
CONF
for i in $(seq "$nodes"); do
  mkdir -p "$folder/spool/n$i"
  gres=$([ "$gpus" -gt 0 ] && echo "Gres=gpu:$gpus" || true)
  echo "NodeName=n$i NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 10 + i)) CPUs=$cpus Boards=1" \
    "SocketsPerBoard=1 CoresPerSocket=$cpus ThreadsPerCore=1 RealMemory=$mem $gres State=UNKNOWN" >> "$folder/slurm.conf"
done
cat >> "$folder/slurm.conf" <<CONF
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=60 State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=6
PartitionName=short Nodes=ALL MaxTime=120 DefaultTime=60 State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=6
PartitionName=high Nodes=ALL MaxTime=INFINITE DefaultTime=60 State=UP PriorityTier=10 PreemptMode=OFF
CONF
echo 'CgroupAutomount=no' > "$folder/cgroup.conf"
# A GPU must be a character device; these exist everywhere, and CUDA_VISIBLE_DEVICES is numbered as for real ones.
devices=(/dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/ptmx /dev/console)
: > "$folder/gres.conf"
for device in "${devices[@]:0:$gpus}"; do echo "Name=gpu File=$device" >> "$folder/gres.conf"; done

export SLURM_CONF=$folder/slurm.conf
echo "export SLURM_CONF=$SLURM_CONF PATH=\$PATH:/usr/sbin" > "$folder/env"
listening() { for _ in $(seq 300); do (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return; sleep 0.1; done; return 1; }
if [ "$accounting" != 0 ]; then
  mkdir -p "$folder/db"
  mariadb-install-db --no-defaults --datadir="$folder/db/data" --user="$user" --auth-root-authentication-method=normal \
    --skip-test-db > "$folder/log/db-install.log" 2>&1
  mariadbd --no-defaults --user="$user" --datadir="$folder/db/data" --socket="$folder/db/socket" --pid-file="$folder/db/pid" \
    --skip-networking=0 --bind-address=127.0.0.1 --port=$((port + 2)) --innodb-buffer-pool-size=128M \
    --innodb-flush-log-at-trx-commit=0 --skip-grant-tables > "$folder/log/db.log" 2>&1 &
  echo "mariadbd $!" >> "$folder/pids"
  listening $((port + 2))
  cat > "$folder/slurmdbd.conf" <<CONF
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=$((port + 1))
SlurmUser=$user
LogFile=$folder/log/slurmdbd.log
PidFile=$folder/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$((port + 2))
StorageUser=root
StorageLoc=slurm_accounting
CONF
  chmod 600 "$folder/slurmdbd.conf"
  SLURM_CONF=$folder/slurmdbd.conf slurmdbd -D > "$folder/log/slurmdbd.out" 2>&1 &
  echo "slurmdbd $!" >> "$folder/pids"
  listening $((port + 1))
  sacctmgr -i add cluster private > /dev/null
  sacctmgr -i add account default Cluster=private > /dev/null
  sacctmgr -i add user "$user" Account=default > /dev/null
fi
slurmctld -D -i > "$folder/log/slurmctld.out" 2>&1 &
echo "slurmctld $!" >> "$folder/pids"
for i in $(seq "$nodes"); do
  slurmd -D -N "n$i" > "$folder/log/slurmd-n$i.out" 2>&1 &
  echo "slurmd $!" >> "$folder/pids"
done
for _ in $(seq 200); do
  idle=$(sinfo -h -N -p main -t idle -o %N 2>/dev/null | sort -u | wc -l)
  [ "$idle" = "$nodes" ] && { echo "slurm up: $nodes nodes of $cpus CPUs and $gpus GPUs in $folder"; exit 0; }
  sleep 0.1
done
echo "slurm-up.sh: only $idle of $nodes nodes came up" >&2
tail -n 5 "$folder"/log/* >&2
exit 1
