//! libibverbs and the rdma_cm device as a preloadable library.
