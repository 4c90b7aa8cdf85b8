serve() {
    while read -r number command; do
        [ -n "$command" ] || continue
        printf '\n@@begin %s\n' "$number"
        ( eval "$command" ) < /dev/null 2>&1
        printf '\n@@status %d\n' $?
    done
}

for port in /sys/class/virtio-ports/*; do
    device=/dev/${port##*/}
    case $(cat "$port/name") in
        # A port can be opened once only, so once for both directions.
        client | server) ( exec 3<> "$device"; printf '@@begin 0\n@@status 0\n' >&3; serve <&3 >&3 ) & ;;
    esac
done
while :; do wait; sleep 1; done
