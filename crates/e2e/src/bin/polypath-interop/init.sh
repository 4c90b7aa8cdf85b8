#!/bin/dash
# The guest's first program. It loads the modules, makes rxe0 over eth0, and runs what comes over the
# two control ports: a number and a command per line; "@@begin NUMBER", its output, and "@@status N" go back.
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
    case $argument in
        polypath.ipv4=*) IPV4=${argument#*=} ;;
        polypath.ipv6=*) IPV6=${argument#*=} ;;
    esac
done
export IPV4 IPV6
# Duplicate address detection, which takes a second, is not needed.
for kind in default all; do echo 0 > /proc/sys/net/ipv6/conf/$kind/accept_dad; done
while read -r module; do insmod "/modules/$module" || echo "module $module is not loaded"; done < /modules/order
ulimit -l unlimited

# set_mtu MTU: of the interface. A small one takes the IPv6 addresses away; they are given back.
set_mtu() {
    ip link set eth0 mtu "$1" || return 1
    if [ "$1" -ge 1280 ] && ! ip -6 addr show dev eth0 | grep -q "$IPV6"; then
        ip -6 addr add "$IPV6/64" dev eth0 nodad
    fi
}
# wait_tcp PORT, wait_cm PORT: wait until a program listens.
listens_tcp() { cat /proc/net/tcp /proc/net/tcp6 | grep -q "$(printf ':%04X ' "$1").* 0A "; }
# The state is LISTEN a little before requests are accepted. Only a server that sleeps is ready.
listens_cm() {
    rdma resource show cm_id | grep -q "LISTEN.*:$1\b" &&
        grep -q '^State:.S' "/proc/$(cat /tmp/server)/status"
}
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

# Loses one packet of a hundred and reorders two, in both directions: what comes in goes through a
# device whose output is the interface's input.
faults_on() {
    tc qdisc add dev eth0 root netem loss 1% delay 1ms reorder 98% &&
    ip link set ifb0 up mtu 9000 &&
    tc qdisc add dev eth0 ingress &&
    tc filter add dev eth0 parent ffff: matchall action mirred egress redirect dev ifb0 &&
    tc qdisc add dev ifb0 root netem loss 1% delay 1ms reorder 98%
}
faults_off() {
    tc qdisc del dev eth0 root; tc qdisc del dev eth0 ingress; tc qdisc del dev ifb0 root
}

serve() {
    while read -r number command; do
        [ -n "$command" ] || continue
        printf '\n@@begin %s\n' "$number"
        ( eval "$command" ) < /dev/null 2>&1
        printf '\n@@status %d\n' $?
    done
}

ip link set lo up
ip link set eth0 mtu 9000 up
ip addr add "$IPV4/24" dev eth0
ip -6 addr add "$IPV6/64" dev eth0 nodad
rdma link add rxe0 type rxe netdev eth0
ip link add ifb0 type ifb 2> /dev/null
for port in /sys/class/virtio-ports/*; do
    device=/dev/${port##*/}
    case $(cat "$port/name") in
        # A port can be opened once only, so once for both directions.
        client | server) ( exec 3<> "$device"; printf '@@begin 0\n@@status 0\n' >&3; serve <&3 >&3 ) & ;;
    esac
done
while :; do wait; sleep 1; done
