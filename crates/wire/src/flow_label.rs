//! Flow labels of RoCEv2 address vectors. The label chooses the UDP source port, and so the way through
//! networks that choose ways by a hash of it.

/// The first of the source ports that RoCEv2 uses.
const PORT_FIRST: u16 = 0xc000;

/// The UDP source port that goes with a flow label of 20 bits, as `ibv_flow_label_to_udp_sport` of rdma-core
/// and `rdma_flow_label_to_udp_sport` of the kernel fold it. `None` if the label is 0: then each sender
/// chooses for itself.
#[must_use]
pub const fn source_port(flow_label: u32) -> Option<u16> {
    match flow_label & 0xf_ffff {
        0 => None,
        label => Some(PORT_FIRST | ((label & 0x3fff) ^ (label >> 14)) as u16),
    }
}

/// Whether paths with these flow labels have different source ports, as far as labels tell. Of the second
/// one, none need be known.
#[must_use]
pub fn is_another_port(flow_label: u32, than: u32) -> bool {
    source_port(flow_label).is_some_and(|port| source_port(than) != Some(port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_fold_into_ports_as_rdma_core_does() {
        assert_eq!(source_port(0x1234), Some(0xc000 | 0x1234));
        assert_eq!(source_port(0xf_ffff), Some(0xc000 | (0x3fff ^ 0x3f)));
        assert_eq!((source_port(0), source_port(0x10_0000)), (None, None));
    }

    #[test]
    fn labels_that_fold_into_the_same_port_are_told_from_others() {
        // Bit 14 folds into bit 0.
        assert!(is_another_port(1, 2) && !is_another_port(1, 1 << 14));
        assert!(is_another_port(1, 0) && !is_another_port(0, 1));
    }
}
