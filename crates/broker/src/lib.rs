//! The part of a kernel: QPN slots, QP1 and the CM, links and addresses, status.
