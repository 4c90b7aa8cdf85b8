# Three hosts are namespaces of the guest: a and c reach each other through b.
mkdir -p /run/netns
for name in a b c; do ip netns add $name && ip -n $name link set lo up; done
# cable NAME ADDRESS NAME ADDRESS: from the first host to the second.
cable() {
    ip link add "$1$3" netns "$1" type veth peer name "$3$1" netns "$3"
    ip -n "$1" link set "$1$3" mtu 9000 up && ip -n "$1" addr add "$2/24" dev "$1$3"
    ip -n "$3" link set "$3$1" mtu 9000 up && ip -n "$3" addr add "$4/24" dev "$3$1"
}
cable a 10.1.0.1 b 10.1.0.2
cable c 10.2.0.1 b 10.2.0.2
ip -n a route add default via 10.1.0.2
ip -n c route add default via 10.2.0.2
# in_net NAME COMMAND...: only the network is another one, because a checkpoint would take along other mounts.
in_net() { name=$1; shift; nsenter --net=/run/netns/$name "$@"; }
in_net b sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'

# start HOST FILE COMMAND...: a program that nobody here is the parent of, with its output in the file.
start() {
    host=$1 file=$2; shift 2
    nsenter --net=/run/netns/$host setsid env POLYPATH_MP=hold=3600 POLYPATH_LOG=1 polypath run --device mp -- "$@" \
        > /tmp/$file 2>&1 < /dev/null 3>&- &
    echo $! > /tmp/$file.id
}
# take_off HOST FILE: the program leaves the host, and its checkpoint is taken.
take_off() {
    rm -rf /tmp/$2.images; mkdir /tmp/$2.images
    in_net $1 polypath move "$(cat /tmp/$2.id)" || return 1
    in_net $1 /usr/sbin/criu dump -t "$(cat /tmp/$2.id)" -D /tmp/$2.images -o log -v4 && return 0
    grep -i error /tmp/$2.images/log; return 1
}
# put_on HOST FILE: the checkpoint is restored.
put_on() {
    in_net $1 /usr/sbin/criu restore -D /tmp/$2.images -d -o restored -v4 && return 0
    grep -i error /tmp/$2.images/restored; return 1
}
has_ended() { ! [ -e "/proc/$(cat /tmp/$1.id)" ]; }
# data HOST: the bytes that the program of the host has sent by all its paths.
data() { in_net $1 polypath status --json | tr -d ' \n' | tr ',{' '\n\n' | sed -n 's/^"sent_bytes"://p'; }
# over HOST WAY: whether the host's program sends over this way now.
over() { in_net $1 polypath status | grep -q " $2 .* active "; }
# wait_tcp_in HOST PORT: wait until a program of the host listens.
listens_in() { in_net $1 cat /proc/net/tcp /proc/net/tcp6 | grep -q "$(printf ':%04X ' "$2").* 0A "; }
# wait_id_in HOST PORT: the same for a program with ids of rdma_cm.
has_id_in() { in_net $1 polypath status --json | grep -q "\"local\": *\"[^\"]*:$2\""; }
wait_id_in() { wait_for has_id_in "$1" "$2"; }
wait_tcp_in() { wait_for listens_in "$1" "$2"; }
