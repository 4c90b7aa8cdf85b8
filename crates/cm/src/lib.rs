//! InfiniBand connection manager and RDMA CM identifiers, without I/O.
