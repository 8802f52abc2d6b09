#!/usr/bin/env bash
# Ends the daemons that slurm-up.sh recorded, by process id and only if they are still those programs.
#   slurm-down.sh FOLDER
set -uo pipefail

folder=$(realpath -m "${1:?usage: slurm-down.sh FOLDER}")
[ -e "$folder/pids" ] || exit 0
export SLURM_CONF=$folder/slurm.conf
timeout 5 scancel -u "$(id -un)" 2>/dev/null
sleep 0.3

running() { # program pid; a zombie that nobody reaps counts as gone
  [ "$(cat "/proc/$2/comm" 2>/dev/null)" = "$1" ] && [ "$(awk '{print $3}' "/proc/$2/stat" 2>/dev/null)" != Z ]
}
stop() { # program pid
  running "$1" "$2" || return 0
  kill "$2"
  for _ in $(seq 50); do running "$1" "$2" || return 0; sleep 0.1; done
  kill -9 "$2" 2>/dev/null
}
# nodes first, and their job steps with them; munge last, since all of them need it
for wanted in slurmd slurmctld slurmdbd mariadbd munged; do
  while read -r program pid; do [ "$program" = "$wanted" ] && stop "$program" "$pid"; done < "$folder/pids"
done
rm -f "$folder/pids"
