use super::*;
use crate::gid::Gid;
use crate::psn::Psn;

fn path() -> CmPath {
    CmPath {
        local_lid: 0x0102,
        remote_lid: 0x0304,
        local_gid: Gid([0x11; 16]),
        remote_gid: Gid([0x22; 16]),
        flow_label: 0xabcde,
        packet_rate: 0x3f,
        traffic_class: 0x68,
        hop_limit: 64,
        sl: 0xf,
        subnet_local: true,
        ack_timeout: 31,
    }
}

fn all_messages() -> Vec<CmMessage> {
    let req = Req {
        local_comm_id: 1,
        service_id: 0x0106_1c06,
        local_ca_guid: 2,
        local_qkey: 3,
        local_qpn: 0xfedcba,
        responder_resources: 4,
        local_eecn: 5,
        initiator_depth: 6,
        remote_eecn: 7,
        remote_cm_response_timeout: 31,
        service: CmService::Extended,
        flow_control: true,
        starting_psn: Psn::new(0x123456),
        local_cm_response_timeout: 20,
        retry_count: 7,
        pkey: 0xffff,
        mtu: 5,
        rdc_exists: true,
        rnr_retry_count: 6,
        max_cm_retries: 15,
        srq: true,
        extended_transport: 1,
        primary: path(),
        alternate: Some(CmPath { ack_timeout: 17, ..path() }),
        sap_supported: true,
        private_data: [0x5a; 92],
    };
    let info = Info::new(&[9; 33]).unwrap();
    let lap = Lap {
        local_comm_id: 1,
        remote_comm_id: 2,
        remote_qpn: 0xabcdef,
        remote_cm_response_timeout: 20,
        alternate: path(),
        private_data: [7; 168],
    };
    let apr = Apr {
        local_comm_id: 1,
        remote_comm_id: 2,
        status: ApStatus::InvalidGid,
        info,
        private_data: [3; 148],
    };
    vec![
        req.into(),
        Req { alternate: None, ..req }.into(),
        Req { alternate: None, sap_supported: false, ..req }.into(),
        Mra {
            local_comm_id: 1,
            remote_comm_id: 2,
            mraed: Mraed::Lap,
            service_timeout: 21,
            private_data: [1; 222],
        }
        .into(),
        Rej {
            local_comm_id: 1,
            remote_comm_id: 2,
            rejected: Rejected::Rep,
            reason: RejectReason::StaleConnection,
            info,
            private_data: [2; 148],
        }
        .into(),
        Rep {
            local_comm_id: 1,
            remote_comm_id: 2,
            local_qkey: 3,
            local_qpn: 4,
            local_eecn: 5,
            starting_psn: Psn::new(6),
            responder_resources: 7,
            initiator_depth: 8,
            target_ack_delay: 15,
            failover: Failover::Rejected,
            flow_control: true,
            rnr_retry_count: 7,
            srq: true,
            lap_supported: true,
            local_ca_guid: 9,
            private_data: [4; 196],
        }
        .into(),
        Rtu { local_comm_id: 1, remote_comm_id: 2, private_data: [5; 224] }.into(),
        Dreq { local_comm_id: 1, remote_comm_id: 2, remote_qpn: 3, private_data: [6; 220] }.into(),
        Drep { local_comm_id: 1, remote_comm_id: 2, private_data: [7; 224] }.into(),
        lap.into(),
        sap().into(),
        apr.into(),
        Spr {
            local_comm_id: 1,
            remote_comm_id: 2,
            status: SprStatus::Busy,
            info: Info::EMPTY,
            private_data: [8; 148],
        }
        .into(),
        SidrReq { request_id: 1, pkey: 2, service_id: 3, private_data: [9; 216] }.into(),
        SidrRep {
            request_id: 1,
            status: SidrStatus::Redirect,
            qpn: 2,
            service_id: 3,
            qkey: 4,
            info,
            private_data: [10; 136],
        }
        .into(),
    ]
}

fn sap() -> Sap {
    Sap {
        local_comm_id: 1,
        remote_comm_id: 2,
        remote_qpn: 0xabcdef,
        local_lid: 0x0102,
        local_gid: Gid([0x11; 16]),
        private_data: [7; 168],
    }
}

#[test]
fn a_suggestion_holds_only_the_senders_address() {
    let mad = CmMad::new(5, sap()).to_bytes();
    // Remote response time-out, reserved bytes, remote LID, and all from the remote GID on are zero.
    for zero in [8..12, 15..20, 22..24, 40..64] {
        assert!(mad[24..][zero].iter().all(|byte| *byte == 0));
    }
    // A sender of LAP's layout fills them in; they are ignored.
    let mut full = mad;
    for byte in [15, 22, 40, 56, 59, 60, 61, 62, 63] {
        full[24 + byte] = 0xff;
    }
    assert_eq!(CmMad::parse(&full).unwrap(), CmMad::parse(&mad).unwrap());
}

#[test]
fn statuses_of_answers_have_the_shipped_numbers() {
    let spr = |code: u8| {
        let status = SprStatus::Success;
        let spr = Spr {
            local_comm_id: 1,
            remote_comm_id: 2,
            status,
            info: Info::EMPTY,
            private_data: [0; 148],
        };
        let mut mad = CmMad::new(1, spr).to_bytes();
        mad[24 + 9] = code;
        let CmMessage::Spr(spr) = CmMad::parse(&mad).unwrap().message else {
            panic!("an SPR comes back as an SPR");
        };
        spr.status
    };
    assert_eq!([0, 1, 2].map(spr), [SprStatus::Success, SprStatus::Busy, SprStatus::Reject]);
    assert_eq!([0x80, 3].map(spr), [SprStatus::Busy, SprStatus::Unknown(3)]);
    assert_eq!(SprStatus::Busy.code(), 1);
    for code in 0..=13 {
        assert!(!matches!(ApStatus::from_code(code), ApStatus::Unknown(_)));
        assert_eq!(ApStatus::from_code(code).code(), code);
    }
    assert_eq!(ApStatus::from_code(0x80), ApStatus::Unknown(0x80));
}

#[test]
fn every_message_survives_with_every_field() {
    for (tid, message) in (0x1_0000_0000..).zip(all_messages()) {
        let mad = CmMad { tid, message };
        assert_eq!(CmMad::parse(&mad.to_bytes()), Ok(mad), "{}", message.name());
        assert!(mad.to_string().starts_with(&format!("CM.{}", message.name())));
    }
}

#[test]
fn attribute_numbers_are_those_of_the_standard() {
    let mut ids: Vec<u16> = all_messages().iter().map(CmMessage::attr_id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids, (0x10..=0x1c).collect::<Vec<u16>>());
}

#[test]
fn wrong_class_version_method_attribute_or_length_is_refused() {
    let good = CmMad::new(1, all_messages()[0]).to_bytes();
    for (at, what) in [
        (0, "MAD base version"),
        (1, "MAD class"),
        (2, "CM class version"),
        (3, "CM method"),
        (16, "CM attribute"),
    ] {
        let mut bad = good;
        bad[at] ^= 0x40;
        match CmMad::parse(&bad) {
            Err(ParseError::BadValue { what: w, .. }) => assert_eq!(w, what),
            other => panic!("{what}: {other:?}"),
        }
    }
    assert!(CmMad::parse(&good[..255]).is_err());
}

#[test]
fn information_longer_than_its_field_is_refused() {
    let mut rej = CmMad::new(
        1,
        Rej {
            local_comm_id: 0,
            remote_comm_id: 0,
            rejected: Rejected::Other,
            reason: RejectReason::Timeout,
            info: Info::EMPTY,
            private_data: [0; 148],
        },
    )
    .to_bytes();
    rej[24 + 9] = 73 << 1;
    assert!(CmMad::parse(&rej).is_err());
    assert!(Info::new(&[0; 73]).is_err());
}

#[test]
fn fields_wider_than_their_place_spill_nowhere() {
    let wide = CmPath { sl: 0xff, ack_timeout: 0xff, packet_rate: 0xff, ..CmPath::default() };
    let lap = Lap {
        local_comm_id: 0,
        remote_comm_id: 0,
        remote_qpn: u32::MAX,
        remote_cm_response_timeout: 0xff,
        alternate: CmPath { flow_label: u32::MAX, ..wide },
        private_data: [0; 168],
    };
    let CmMessage::Lap(back) = CmMad::parse(&CmMad::new(0, lap).to_bytes()).unwrap().message else {
        panic!("a LAP comes back as a LAP");
    };
    assert_eq!(back.remote_qpn, 0xff_ffff);
    assert_eq!(back.alternate.flow_label, 0xf_ffff);
    assert_eq!(back.alternate.traffic_class, 0);
    assert_eq!(back.alternate.packet_rate, 0x3f);
    assert!(!back.alternate.subnet_local);
}

#[test]
fn reserved_bits_alone_are_no_alternate_path() {
    let mut mad = CmMad::new(0, Req::default()).to_bytes();
    // Reserved bits: between flow label and rate, below the service level, and below the ACK timeout.
    for (at, bits) in [(134, 0x0f), (138, 0x07), (139, 0x03)] {
        mad[24 + at] = bits;
    }
    let CmMessage::Req(req) = CmMad::parse(&mad).unwrap().message else {
        panic!("a REQ comes back as a REQ");
    };
    assert_eq!((req.alternate, req.sap_supported), (None, false));
}

#[test]
fn reject_reasons_round_trip_for_every_number() {
    for code in 0..100 {
        assert_eq!(RejectReason::from_code(code).code(), code);
    }
    assert_eq!(RejectReason::from_code(28), RejectReason::ConsumerDefined);
    assert_eq!(RejectReason::from_code(34), RejectReason::Unknown(34));
}

#[test]
fn service_ids_name_port_space_and_port() {
    assert_eq!(service_id(PortSpace::Tcp, 7174), 0x0106_1c06);
    assert_eq!(port_of(0x0111_1c06), Some((PortSpace::Udp, 7174)));
    assert_eq!(port_of(0x1000_0000_0106_1c06), None);
    assert_eq!(port_of(0x0107_1c06), None);
}

#[test]
fn ip_header_holds_both_families() {
    let v4 = CmaHeader {
        src_port: 0xb52c,
        src: "10.77.0.2".parse().unwrap(),
        dst: "10.77.0.1".parse().unwrap(),
    };
    let b = v4.to_bytes();
    assert_eq!(b[..4], [0, 0x40, 0xb5, 0x2c]);
    assert_eq!(b[16..20], [10, 77, 0, 2]);
    assert_eq!(CmaHeader::parse(&b), Ok(v4));
    let v6 = CmaHeader { src: "fd00::2".parse().unwrap(), dst: "fd00::1".parse().unwrap(), ..v4 };
    assert_eq!(CmaHeader::parse(&v6.to_bytes()), Ok(v6));
    assert_eq!(v6.source().to_string(), "[fd00::2]:46380");
    let mut bad = b;
    bad[1] = 0x50;
    assert!(CmaHeader::parse(&bad).is_err());
    assert!(CmaHeader::parse(&b[..35]).is_err());
}
