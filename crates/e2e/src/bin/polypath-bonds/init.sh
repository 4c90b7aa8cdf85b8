# Makes bonds of eth0, eth1 and so on.

# Loading the module makes one.
ip link del bond0 2> /dev/null

# bond_up COUNT OPTION...: a bond with the first COUNT interfaces.
bond_up() {
    count=$1; shift
    ip link add bond0 type bond miimon 100 "$@" || return 1
    link=0
    while [ $link -lt "$count" ]; do enslave eth$link || return 1; link=$((link + 1)); done
    ip link set bond0 mtu 9000 up && ip addr add "$IPV4/24" dev bond0
}
bond_down() { ip link del bond0; }
# enslave, release, silence and speak INTERFACE
enslave() { ip link set "$1" down && ip link set "$1" master bond0; }
release() { ip link set "$1" nomaster; }
silence() { tc qdisc add dev "$1" root netem loss 100%; }
speak() { tc qdisc del dev "$1" root; }
# vlan_on: the bond's address moves to a VLAN above it. vlan_off: it moves back.
vlan_on() {
    ip addr flush dev bond0 scope global && ip link add link bond0 name bond0.100 type vlan id 100 &&
        ip link set bond0.100 up && ip addr add "$IPV4/24" dev bond0.100
}
vlan_off() { ip link del bond0.100 && ip addr add "$IPV4/24" dev bond0; }
# bond_whole COUNT: whether so many slaves carry. Under LACP both ends collect and distribute (state 63).
bond_whole() {
    bond=/proc/net/bonding/bond0
    [ "$(grep -c '^MII Status: up' $bond)" = $(($1 + 1)) ] || return 1
    grep -q 802.3ad $bond || return 0
    [ "$(grep -c 'port state: 63' $bond)" = $((2 * $1)) ]
}
# own_up COUNT OPTION...: the first COUNT interfaces share an address, as those of a bond do, and speak LACP,
# without a bond of the kernel's. own_whole COUNT: whether so many carry; own_shares COUNT: whether they have one
# hardware address. own_down COUNT.
own_up() {
    count=$1; shift
    members=""; link=0
    while [ $link -lt "$count" ]; do
        ip link set eth$link mtu 9000 up || return 1
        members=$members${members:+"+"}eth$link; link=$((link + 1))
    done
    ip addr add "$IPV4/24" dev eth0 || return 1
    polypath lacp "$members" --share-address --state /tmp/lacp "$@" > /tmp/lacp.log 2>&1 & echo $! > /tmp/lacp.id
}
own_shares() { [ "$(cat /sys/class/net/eth*/address | grep -c "^$(cat /sys/class/net/eth0/address)")" = "$1" ]; }
own_whole() { [ "$(grep -c 'port state: 63' /tmp/lacp)" = $((2 * $1)) ]; }
own_down() {
    kill "$(cat /tmp/lacp.id)"
    while [ -e "/proc/$(cat /tmp/lacp.id)" ]; do usleep 10000; done
    ip addr del "$IPV4/24" dev eth0
    # They have their own hardware addresses again.
    [ "$(cat /sys/class/net/eth*/address | sort -u | wc -l)" = "$(ls -d /sys/class/net/eth* | wc -l)" ] || return 1
    link=0
    while [ $link -lt "$1" ]; do ip link set eth$link down; link=$((link + 1)); done
}
active() { cat /sys/class/net/bond0/bonding/active_slave; }
# received: the bytes by each interface, in order.
received() { cat /sys/class/net/eth*/statistics/rx_bytes; }

# rxe and Polypath both want UDP port 4791.
rxe_on() { load later && rdma link add rxe0 type rxe netdev bond0; }
rxe_off() { rdma link del rxe0; rmmod rdma_rxe; }
listens_cm() {
    if [ -e /sys/class/infiniband/rxe0 ]; then
        # The state is LISTEN a little before requests are accepted. Only a server that sleeps is ready.
        rdma resource show cm_id | grep -q "LISTEN.*:$1\b" && grep -q '^State:.S' "/proc/$(cat /tmp/program)/status"
    else
        polypath status --json 2> /dev/null | tr -d ' \n' | tr '{' '\n' | grep -i listen | grep -q ":$1\""
    fi
}
# program COMMAND...: run a program whose process id is in /tmp/program.
program() { "$@" & echo $! > /tmp/program; wait $!; }
has_ended() { [ -e /tmp/program ] && ! [ -e "/proc/$(cat /tmp/program)" ]; }
# end: tell perftest three times that time is over, which is what it waits for, and again if it did not hear.
end() {
    tries=0
    while kill -ALRM "$(cat /tmp/program)" 2> /dev/null; do
        tries=$((tries + 1)); [ $tries -lt 3 ] && usleep 300000 || sleep 2
    done
}
# flows_on COUNT, phase, flows_off: c/flows.c over the first COUNT interfaces.
flows_on() { flows $(ls /sys/class/net | grep eth | head -n "$1") > /tmp/flows 2>&1 & echo $! > /tmp/flows.id; }
phase() { kill -USR1 "$(cat /tmp/flows.id)"; }
flows_off() {
    kill "$(cat /tmp/flows.id)"
    while [ -e "/proc/$(cat /tmp/flows.id)" ]; do usleep 10000; done
    cat /tmp/flows
}

