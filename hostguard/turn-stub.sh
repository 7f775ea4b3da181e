#!/bin/sh
# Runs one turn of an exec mind: waits for the guard's word on stdin, which comes once the scope is up, then
# runs the command and leaves its exit status and account in RECORD, whether or not the guard still lives.
# usage: turn-stub.sh RECORD PAYLOAD DIRECTORY CGROUP COMMAND [ARG...]
# RECORD stays empty unless the command may run; it outlives the guard. The format is read by turns.py.
read -r _ || exit 0 # the guard died first: nothing was started
record=$1 payload=$2 directory=$3 cgroup=$4
shift 4
exec 3>"$record" 0<"$payload" || exit 0
cd -- "$directory" || { echo "not_started cannot enter $directory" >&3; exit 0; }
[ -x "$1" ] && [ ! -d "$1" ] || { echo "not_started cannot execute $1" >&3; exit 0; }
echo started >&3
trap : HUP INT TERM # outlive them, to record how the command took them
"$@" 3>&-
echo "exit $?" >&3
{
    while read -r key value; do
        case $key in usage_usec) echo "cpu_usec $value" >&3 ;; esac
    done <"$cgroup/cpu.stat"
    read -r value <"$cgroup/memory.peak" && echo "memory_peak $value" >&3
    # What a child read and wrote is added to its parent's account when it is reaped.
    while read -r key value; do
        case $key in
            read_bytes:) echo "read_bytes $value" >&3 ;;
            write_bytes:) echo "write_bytes $value" >&3 ;;
        esac
    done </proc/self/io
} 2>/dev/null
