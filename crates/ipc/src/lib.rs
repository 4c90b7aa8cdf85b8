//! What a process and the broker say to each other.
