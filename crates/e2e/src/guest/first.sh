#!/bin/dash
# The first program of every guest. It loads the modules, does what follows for this kind of guest, and runs
# what comes over the two control ports: a number and a command per line; "@@begin NUMBER", its output, and
# "@@status N" go back.
# Busybox is last in the PATH, and its shell is not used, because both would prefer its own ip, which can do less.
export PATH=/usr/bin:/bin:/sbin:/busybox HOME=/root
/usr/bin/busybox mkdir /busybox
/usr/bin/busybox --install -s /busybox
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
for argument in $(cat /proc/cmdline); do
    case $argument in polypath.*=*) export "${argument#polypath.}" ;; esac
done
# Duplicate address detection, which takes a second, is not needed.
for kind in default all; do echo 0 > /proc/sys/net/ipv6/conf/$kind/accept_dad; done
# load LIST: load the modules of a list.
load() {
    while read -r module; do insmod "/modules/$module" || echo "module $module is not loaded"; done < "/modules/$1"
}
load order
ulimit -l unlimited

# wait_tcp PORT, wait_cm PORT: wait until a program listens; listens_cm is a matter of the guest.
listens_tcp() { cat /proc/net/tcp /proc/net/tcp6 | grep -q "$(printf ':%04X ' "$1").* 0A "; }
wait_tcp() { wait_for listens_tcp "$1"; }
wait_cm() { wait_for listens_cm "$1"; }
# wait_for COMMAND...: repeat the command until it succeeds, for ten seconds at most.
wait_for() {
    tries=0
    until "$@"; do
        tries=$((tries + 1)); [ $tries -lt 500 ] || { echo "waited in vain: $*"; return 1; }
        usleep 20000
    done
}

ip link set lo up
