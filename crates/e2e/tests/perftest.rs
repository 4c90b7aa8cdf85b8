//! Unmodified perftest: every operation, with many sizes, all service types and both ways to connect.

use polypath_e2e::{Case, matrix};
use std::time::Duration;

const BANDWIDTH: &[&str] = &["BW average"];
const LATENCY: &[&str] = &["t_typical"];
/// The limit for `-a`, which measures the processor's clock anew for each size.
const SIZES: Duration = Duration::from_secs(60);

matrix! {
    send_bw: Case::tcp("ib_send_bw -n 500", BANDWIDTH);
    send_bw_sizes: Case::tcp("ib_send_bw -a -n 20", &["8388608"]).within(SIZES);
    send_bw_cm: Case::perftest_cm("ib_send_bw -R -n 200", BANDWIDTH);
    send_bw_events: Case::tcp("ib_send_bw -e -n 200", BANDWIDTH);
    send_bw_16_qps: Case::tcp("ib_send_bw -q 16 -n 50", BANDWIDTH);
    send_bw_both_ways: Case::tcp("ib_send_bw -b -n 200", BANDWIDTH);
    send_bw_shared_receive_queue: Case::tcp("ib_send_bw -q 4 --use-srq -n 100", BANDWIDTH);
    send_bw_uc: Case::tcp("ib_send_bw -c UC -s 4096 -n 500", BANDWIDTH);
    send_bw_ud: Case::tcp("ib_send_bw -c UD -s 1024 -n 500", BANDWIDTH);
    send_bw_ud_cm: Case::perftest_cm("ib_send_bw -R -c UD -s 1024 -n 200", BANDWIDTH);
    send_lat: Case::tcp("ib_send_lat -s 64 -n 500", LATENCY);
    send_lat_byte: Case::tcp("ib_send_lat -s 1 -n 200", LATENCY);
    send_lat_packets: Case::tcp("ib_send_lat -s 65537 -n 100", LATENCY);
    send_lat_large: Case::tcp("ib_send_lat -s 8388608 -n 10", LATENCY);
    send_lat_cm: Case::perftest_cm("ib_send_lat -R -s 64 -n 200", LATENCY);
    send_lat_events: Case::tcp("ib_send_lat -e -s 64 -n 200", LATENCY);
    send_lat_inline: Case::tcp("ib_send_lat -I 128 -s 100 -n 200", LATENCY);
    send_lat_uc: Case::tcp("ib_send_lat -c UC -s 64 -n 200", LATENCY);
    send_lat_ud: Case::tcp("ib_send_lat -c UD -s 64 -n 200", LATENCY);
    send_lat_xrc: Case::tcp("ib_send_lat -c XRC -s 64 -n 200", LATENCY);
    send_bw_xrc: Case::tcp("ib_send_bw -c XRC -n 200", BANDWIDTH);

    write_bw: Case::tcp("ib_write_bw -n 500", BANDWIDTH);
    write_bw_gid_1: Case::tcp("ib_write_bw -x 1 -n 100", BANDWIDTH);
    write_bw_sizes: Case::tcp("ib_write_bw -a -n 20", &["8388608"]).within(SIZES);
    write_bw_cm: Case::perftest_cm("ib_write_bw -R -n 200", BANDWIDTH);
    write_bw_16_qps: Case::tcp("ib_write_bw -q 16 -n 50", BANDWIDTH);
    write_bw_both_ways: Case::tcp("ib_write_bw -b -n 200", BANDWIDTH);
    write_bw_inline: Case::tcp("ib_write_bw -I 64 -s 64 -n 500", BANDWIDTH);
    write_bw_uc: Case::tcp("ib_write_bw -c UC -n 500", BANDWIDTH);
    write_bw_xrc: Case::tcp("ib_write_bw -c XRC -q 4 -n 200", BANDWIDTH);
    write_lat: Case::tcp("ib_write_lat -s 64 -n 500", LATENCY);
    write_lat_byte: Case::tcp("ib_write_lat -s 1 -n 200", LATENCY);
    write_lat_packets: Case::tcp("ib_write_lat -s 65537 -n 100", LATENCY);
    write_lat_large: Case::tcp("ib_write_lat -s 8388608 -n 10", LATENCY);
    write_lat_cm: Case::perftest_cm("ib_write_lat -R -s 64 -n 200", LATENCY);
    write_lat_inline: Case::tcp("ib_write_lat -I 128 -s 100 -n 200", LATENCY);

    read_bw: Case::tcp("ib_read_bw -n 500", BANDWIDTH);
    read_bw_sizes: Case::tcp("ib_read_bw -a -n 20", &["8388608"]).within(SIZES);
    read_bw_cm: Case::perftest_cm("ib_read_bw -R -n 200", BANDWIDTH);
    read_bw_events: Case::tcp("ib_read_bw -e -n 200", BANDWIDTH);
    read_bw_16_qps: Case::tcp("ib_read_bw -q 16 -n 50", BANDWIDTH);
    read_bw_both_ways: Case::tcp("ib_read_bw -b -n 200", BANDWIDTH);
    read_bw_xrc: Case::tcp("ib_read_bw -c XRC -n 200", BANDWIDTH);
    read_lat: Case::tcp("ib_read_lat -s 64 -n 500", LATENCY);
    read_lat_cm: Case::perftest_cm("ib_read_lat -R -s 64 -n 200", LATENCY);
    read_lat_events: Case::tcp("ib_read_lat -e -s 64 -n 200", LATENCY);

    atomic_bw_add: Case::tcp("ib_atomic_bw -n 500", BANDWIDTH);
    atomic_bw_swap: Case::tcp("ib_atomic_bw -A CMP_AND_SWAP -n 500", BANDWIDTH);
    atomic_bw_cm: Case::perftest_cm("ib_atomic_bw -R -n 200", BANDWIDTH);
    atomic_bw_events: Case::tcp("ib_atomic_bw -e -n 200", BANDWIDTH);
    atomic_bw_16_qps: Case::tcp("ib_atomic_bw -q 16 -n 50", BANDWIDTH);
    atomic_bw_both_ways: Case::tcp("ib_atomic_bw -b -n 200", BANDWIDTH);
    atomic_bw_xrc: Case::tcp("ib_atomic_bw -c XRC -n 200", BANDWIDTH);
    atomic_lat_add: Case::tcp("ib_atomic_lat -n 500", LATENCY);
    atomic_lat_swap: Case::tcp("ib_atomic_lat -A CMP_AND_SWAP -n 500", LATENCY);
    atomic_lat_cm: Case::perftest_cm("ib_atomic_lat -R -n 200", LATENCY);
}
