//! qperf, fio, and valgrind.

use super::LIMIT;
use polypath_e2e::{Case, Ready};

/// qperf's tests of reliable connections. Without `-cm 1`, qperf supports only LIDs, as InfiniBand has
/// them. It has no such option for UC and UD, so these fail on any RoCE device.
macro_rules! qperf {
    ($tests:literal, $expect:expr) => {
        Case::two(
            "qperf",
            Ready::Tcp(19765),
            concat!("qperf {server} -cm 1 -t 1 ", $tests, " quit"),
            $expect,
        )
        .within(LIMIT)
    };
}

/// fio's rdma engine. The job that reads is the server, whatever the client's verb is.
macro_rules! fio {
    ($verb:literal, $size:literal) => {
        Case::two(
            concat!(
                "fio --name=s --ioengine=rdma --port=7300 --bindname={server} --bs=64k --size=",
                $size,
                " --iodepth=16 --rw=read"
            ),
            Ready::Cm(7300),
            concat!(
                "fio --name=c --ioengine=rdma --hostname={server} --port=7300 --verb=",
                $verb,
                " --bs=64k --size=",
                $size,
                " --iodepth=8 --rw=write"
            ),
            &["err= 0"],
        )
        .within(LIMIT)
    };
}

programs! {
    /// Both ends; a fault in the memory of either fails it.
    #[ignore = "long: make ecosystem runs it"]
    valgrind: Case::two(
        "valgrind --error-exitcode=9 ibv_rc_pingpong -g 1 -c -n 100",
        Ready::Tcp(18515),
        "valgrind --error-exitcode=9 ibv_rc_pingpong -g 1 -c -n 100 {server}",
        &["iters in", "ERROR SUMMARY: 0 errors"]
    )
    .within(LIMIT);
    #[ignore = "long: make ecosystem runs it"]
    qperf_messages: qperf!("rc_bw rc_lat rc_bi_bw", &["rc_bw", "latency"]);
    #[ignore = "long: make ecosystem runs it"]
    qperf_rdma: qperf!(
        "rc_rdma_read_bw rc_rdma_read_lat rc_rdma_write_bw rc_rdma_write_lat rc_rdma_write_poll_lat",
        &["rc_rdma_write_poll_lat", "latency"]
    );
    #[ignore = "long: make ecosystem runs it"]
    qperf_atomics: qperf!(
        "rc_fetch_add_mr rc_compare_swap_mr ver_rc_fetch_add ver_rc_compare_swap",
        &["ver_rc_compare_swap", "msg_rate"]
    );
    #[ignore = "long: make ecosystem runs it"]
    fio_writes: fio!("write", "16m");
    #[ignore = "long: make ecosystem runs it"]
    fio_reads: fio!("read", "16m");
    /// There are no more messages than the server has receives posted at the start, because fio sets no
    /// RNR retries.
    #[ignore = "long: make ecosystem runs it"]
    fio_sends: fio!("send", "1m");
}
