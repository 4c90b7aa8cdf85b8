# Sends many RoCEv2 packets of one kind, from any address. Needs root in its namespace.
#
#   perl liar.pl KIND SOURCE DESTINATION QPN MANY [KEY [ADDRESS]]
#
# KEY is the key that the kind needs: a Q_Key, an rkey or a GUID; ADDRESS is a memory address.
use strict;
use warnings;
use Socket;

my ($kind, $src, $dst, $qpn, $many, $key, $va) = @ARGV;
my @crc_table = map {
    my $c = $_;
    $c = $c & 1 ? 0xedb88320 ^ ($c >> 1) : $c >> 1 for 1 .. 8;
    $c;
} 0 .. 255;

sub crc32 {
    my $c = 0xffffffff;
    $c = $crc_table[($c ^ $_) & 0xff] ^ ($c >> 8) for unpack 'C*', shift;
    return $c ^ 0xffffffff;
}

sub bth {
    my ($opcode, $to, $psn) = @_;
    return pack 'CCnNN', $opcode, 0x40, 0xffff, $to & 0xffffff, 1 << 31 | $psn & 0xffffff;
}

# A management datagram of the connection manager for QP1.
sub mad {
    my ($attribute, $body) = @_;
    my $mad = pack 'CCCCnnNNnnN', 1, 7, 2, 3, 0, 0, int rand 2**32, int rand 2**32, $attribute, 0, 0;
    $mad .= $body;
    $mad .= "\0" x (256 - length $mad);
    return bth(0x64, 1, 0) . pack('NN', 0x80010000, 1) . $mad;
}

# A REQ of the queue pair, with the GUID of its adapter, for a service that no process has.
sub req {
    my ($guid, $number) = @_;
    return mad(0x10, pack('NNNNQ>NNN', rand 2**32, 0, 0x7777, rand 2**32, $guid, 0, 0, $number << 8) . "\0" x 14 . chr(0x50));
}

sub noise { return join '', map { chr int rand 256 } 1 .. shift }

my %kinds = (
    'write' => sub { bth(0x0a, $qpn, rand 2**24) . pack('NNNN', 0, 4096, rand 2**32, 8) . 'forged!!' },
    'send' => sub { bth(0x04, $qpn, rand 2**24) . 'forged!!' },
    'ack' => sub { bth(0x11, $qpn, rand 2**24) . pack('N', 0x1f000000 | rand 2**24) },
    # READs and atomics with any PSN. `read-wide` asks for the largest length of the field.
    'read' => sub { bth(0x0c, $qpn, rand 2**24) . pack('NNNN', 0, 4096, rand 2**32, 8) },
    'read-wide' => sub { bth(0x0c, $qpn, rand 2**24) . pack('NNNN', 0, 4096, rand 2**32, 0xffffffff) },
    'atomic' => sub { bth(0x13 + int rand 2, $qpn, rand 2**24) . pack('NNNNNNN', 0, 4096, rand 2**32, 0, 1, 0, 0) },
    'read-response' => sub { bth(0x10, $qpn, rand 2**24) . pack('N', 0x1f000000 | rand 2**24) . 'forged!!' },
    'nak' => sub { bth(0x11, $qpn, rand 2**24) . pack('N', 0x62000000 | rand 2**24) },
    'qkey' => sub { bth(0x64, 1, 0) . pack('NN', 0x80010000 ^ 1 + int rand 2**16, 1) . noise(256) },
    'bad-icrc' => sub { bth(0x04, $qpn, rand 2**24) . 'forged!!' },
    'truncated' => sub { bth(0x0a, $qpn, rand 2**24) },
    # Index 0 of a lane is no queue pair.
    'no-such-qp' => sub { bth(0x04, $qpn & 0xff0000, 0) . 'forged!!' },
    'other-service' => sub { bth(0x24, $qpn, 0) . 'forged!!' },
    # PSNs far ahead of the expected one, and behind it: none that is expected.
    'far-psn' => sub { bth(0x04, $qpn, rand 2**24) . 'forged!!' },
    'mp-data' => sub { bth(0xc4, $qpn, rand 2**24) . pack('CCnNNNN', 0x10, 0, 0x7777, 0, 0, 0, 0) . 'forged!!' },
    'hello' => sub {
        bth(0x64, $qpn, 0) . pack('NN', 0x80504f4c, 77) . 'PPTH' . pack('CCCC', 1, 1, 2, 1) . noise(8)
          . noise(16) . "\0" x 16 . pack('NNNNNN', 77, $qpn, 0, 65536, 1, 1)
          . "\0" x 10 . "\xff\xff" . inet_aton($src) . pack('CCn', 24, 0, 1) . "\0" x 16;
    },
    'control' => sub {
        bth(0xda, $qpn & 0xff0000, 0)
          . pack('CCnNNCCCCNNNNNN', 1, 0, 1, rand 8, rand 8, 4, 0, 0, 0, 0, 1, 0, 0, 0, 0) . noise(16);
    },
    'req' => sub { mad(0x10, pack('NN', rand 2**32, 0) . pack('NN', 0, rand 2**32) . noise(8) . noise(200)) },
    'rej' => sub { mad(0x12, pack('NNCCn', rand 2**32, rand 2**32, 0, 0, 28)) },
    'rej-timeout' => sub { mad(0x12, pack('NNCCn', rand 2**32, 0, 0, 8 << 1, 4) . noise(8)) },
    'rep' => sub { mad(0x13, pack('NN', rand 2**32, rand 2**32) . "\0" x 4 . pack('N', $qpn << 8)) },
    'mra' => sub { mad(0x11, pack('NNCC', rand 2**32, rand 2**32, 0x40, 0)) },
    'drep' => sub { mad(0x16, pack('NN', rand 2**32, rand 2**32)) },
    'sidr-req' => sub { mad(0x17, pack('NnnNN', rand 2**32, 0xffff, 0, rand 2**32, rand 2**32)) },
    'sidr-rep' => sub { mad(0x18, pack('NCCnNNNN', rand 2**32, 0, 0, 0, $qpn << 8, 0, rand 2**32, 0x11)) },
    'rtu' => sub { mad(0x14, pack('NN', rand 2**32, rand 2**32)) },
    'dreq' => sub { mad(0x15, pack('NNN', rand 2**32, rand 2**32, $qpn << 8)) },
    # A REQ says that its sender has forgotten the connection of this queue pair. Numbers that are wrong, and right.
    'req-wrong-qpn' => sub { req($key, $qpn ^ 1 + int rand 2**16) },
    'req-wrong-guid' => sub { req($key ^ 1 + int rand 2**32, $qpn) },
    'req-stale' => sub { req($key, $qpn) },
    # A datagram for a program, with a wrong Q_Key and with the right one.
    'ud-wrong-qkey' => sub { bth(0x64, $qpn, rand 2**24) . pack('NN', $key ^ 1 + int rand 2**31, 1) . 'forged!!' },
    'ud-right-qkey' => sub { bth(0x64, $qpn, rand 2**24) . pack('NN', $key, 1) . 'guessed!' },
    # UC: a message in one packet, and packets that no message began with.
    'uc-send' => sub { bth(0x24, $qpn, rand 2**24) . 'guessed!' },
    'uc-middle' => sub { bth(0x21, $qpn, rand 2**24) . 'f' x 1024 },
    'uc-last' => sub { bth(0x22, $qpn, rand 2**24) . 'forged!!' },
    'uc-wrong-key' => sub { bth(0x2a, $qpn, rand 2**24) . pack('Q>NN', $va, $key ^ 1 + int rand 2**31, 8) . 'forged!!' },
    'uc-wrong-range' => sub { bth(0x2a, $qpn, rand 2**24) . pack('Q>NN', $va + 4096, $key, 8) . 'forged!!' },
    'uc-right-key' => sub { bth(0x2a, $qpn, rand 2**24) . pack('Q>NN', $va, $key, 8) . 'guessed!' },
    # The peer's own message of two packets, and an attacker's guess between them.
    'uc-between' => sub {
        my $psn = rand 2**23;
        return (bth(0x20, $qpn, $psn) . 'g' x 1024, bth(0x24, $qpn, $psn + 2**22) . 'between!', bth(0x22, $qpn, $psn + 1) . 'genuine!');
    },
    'garbage-mad' => sub { mad(0x77, noise(200)) },
    'oversized' => sub { bth(0x04, $qpn, rand 2**24) . 'x' x 8000 },
);
# An attacker that sees the peer's packets knows the next PSN. It sends a WRITE with a wrong key.
my $tap;
if ($kind eq 'wrong-key') {
    socket $tap, 17, SOCK_RAW, unpack 'S', pack 'n', 3 or die "packet socket: $!\n";
}

# The number of the newest request. Older ones, which have come while this program had no processor, are
# passed over: theirs is no longer the next.
sub overheard {
    my $newest;
    while (1) {
        my $got = recv $tap, my $frame, 2048, defined $newest ? MSG_DONTWAIT : 0;
        return $newest if not defined $got;
        next if length $frame < 54 or unpack('n', substr $frame, 12, 2) != 0x0800;
        my $ip = substr $frame, 14;
        next if substr($ip, 12, 8) ne inet_aton($src) . inet_aton($dst) or ord substr($ip, 9, 1) != 17;
        my ($opcode, $to, $psn) = unpack 'x28 C x3 N N', $ip;
        # Requests, but not what is forged here.
        next if ($to & 0xffffff) != $qpn or $opcode > 0x0c or $opcode == 0x0a;
        $newest = $psn & 0xffffff;
    }
}

$kinds{'wrong-key'} = sub {
    bth(0x0a, $qpn, overheard() + 1) . pack('NNNN', 0, 4096, rand 2**32, 8) . 'forged!!';
};
my $make = $kinds{$kind} or die "no such lie: $kind\n";

socket my $raw, AF_INET, SOCK_RAW, 255 or die "raw socket: $!\n";
my $id = 0x4242;
for (1 .. $many) {
    emit($_) for $make->();
    select undef, undef, undef, 0.001 if $_ % 32 == 0;
}
print "sent $many\n";

sub emit {
    my ($packet) = @_;
    my $udp = pack 'nnnn', 0xc123, 4791, 8 + length($packet) + 4, 0;
    my $total = 20 + length($udp) + length($packet) + 4;
    my $addresses = inet_aton($src) . inet_aton($dst);
    # What routers may change counts as ones: TOS, TTL, checksums, and the BTH's congestion bits.
    my $covered = "\xff" x 8 . pack('CCnnnCCn', 0x45, 0xff, $total, $id, 0x4000, 0xff, 17, 0xffff) . $addresses;
    $covered .= substr($udp, 0, 6) . "\xff\xff" . $packet;
    substr $covered, 8 + 20 + 8 + 4, 1, "\xff";
    my $icrc = crc32($covered);
    $icrc ^= 1 << 20 if $kind eq 'bad-icrc' or $kind eq 'oversized';
    my $ip = pack('CCnnnCCn', 0x45, 0, $total, $id, 0x4000, 64, 17, 0) . $addresses;
    send $raw, $ip . $udp . $packet . pack('V', $icrc), 0, pack_sockaddr_in(0, inet_aton($dst)) or die "send: $!\n";
}
