//! Asynchronous events (`man 3 ibv_get_async_event`).

/// The object of an event. `u64` is the token that the front end gave the object, `u8` the port number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Element {
    Qp(u64),
    Cq(u64),
    Srq(u64),
    Port(u8),
    Device,
}

/// `enum ibv_event_type`; same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum AsyncKind {
    CqErr = 0,
    QpFatal = 1,
    QpReqErr = 2,
    QpAccessErr = 3,
    CommEst = 4,
    SqDrained = 5,
    PathMig = 6,
    PathMigErr = 7,
    DeviceFatal = 8,
    PortActive = 9,
    PortErr = 10,
    LidChange = 11,
    PkeyChange = 12,
    SmChange = 13,
    SrqErr = 14,
    SrqLimitReached = 15,
    QpLastWqeReached = 16,
    ClientReregister = 17,
    GidChange = 18,
    WqFatal = 19,
    /// Newer than the others: rdma-core has it since the year 2026, with `ibv_query_port_speed`.
    DeviceSpeedChange = 20,
}

/// One asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// The kind of the event.
    pub kind: AsyncKind,
    /// The object that the event is about.
    pub element: Element,
}
