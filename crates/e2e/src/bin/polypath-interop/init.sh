# Makes rxe0 over eth0.

# set_mtu MTU: of the interface. A small one takes the IPv6 addresses away; they are given back.
set_mtu() {
    ip link set eth0 mtu "$1" || return 1
    if [ "$1" -ge 1280 ] && ! ip -6 addr show dev eth0 | grep -q "$IPV6"; then
        ip -6 addr add "$IPV6/64" dev eth0 nodad
    fi
}
# The state is LISTEN a little before requests are accepted. Only a server that sleeps is ready.
listens_cm() {
    rdma resource show cm_id | grep -q "LISTEN.*:$1\b" &&
        grep -q '^State:.S' "/proc/$(cat /tmp/server)/status"
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

ip link set eth0 mtu 9000 up
ip addr add "$IPV4/24" dev eth0
ip -6 addr add "$IPV6/64" dev eth0 nodad
rdma link add rxe0 type rxe netdev eth0
ip link add ifb0 type ifb 2> /dev/null
