//! Properties that must hold for any value and any input.

use polypath_wire::bth::Bth;
use polypath_wire::cm::{CmMad, CmaHeader};
use polypath_wire::ext::{
    Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Ieth, ImmDt, MpHeader, MpSack, Reth, SackBlock,
    Syndrome, XrcEth,
};
use polypath_wire::grh::Grh;
use polypath_wire::icrc::{Flow, FlowCrc};
use polypath_wire::mad::MadHeader;
use polypath_wire::packet::pad_for;
use polypath_wire::psn::PSN_MASK;
use polypath_wire::{Headers, Opcode, Packet, Psn, Service};
use proptest::prelude::*;

fn known_opcode() -> impl Strategy<Value = Opcode> {
    let unknown = |o: &Opcode| matches!(o.service(), Service::Unknown | Service::Rd);
    let known: Vec<Opcode> = (0..=255).map(Opcode).filter(|o| !unknown(o)).collect();
    prop::sample::select(known)
}

prop_compose! {
    fn bth()(
        opcode in known_opcode(),
        flags in any::<[bool; 5]>(),
        pkey: u16,
        dest_qpn in 0..=0xff_ffffu32,
        psn in 0..=PSN_MASK,
    ) -> Bth {
        Bth {
            opcode,
            solicited: flags[0],
            mig_req: flags[1],
            pad: 0,
            tver: 0,
            pkey,
            fecn: flags[2],
            becn: flags[3],
            dest_qpn,
            ack_req: flags[4],
            psn: Psn::new(psn),
        }
    }
}

prop_compose! {
    /// Headers that fit their opcode, with any contents.
    fn headers()(bth in bth(), fill in any::<[u64; 7]>()) -> Headers {
        let op = bth.opcode;
        let [a, b, c, d, e, f, g] = fill;
        Headers {
            bth,
            mp: op.has_mp_header().then_some(MpHeader {
                flags: a as u8 & 0xf,
                path_id: (a >> 8) as u8,
                generation: (a >> 16) as u16,
                msg: (a >> 32) as u32,
                offset: b as u32,
                recv: (b >> 32) as u32,
                timestamp: c as u32,
            }),
            xrc: op.has_xrceth().then_some(XrcEth { srqn: (c >> 40) as u32 }),
            deth: op.has_deth().then_some(Deth { qkey: d as u32, src_qpn: (d >> 40) as u32 }),
            feth: op.has_feth().then_some(Feth {
                placement: d as u8 & 0xf,
                selectivity: (d >> 4) as u8 & 3,
            }),
            reth: op.has_reth().then_some(Reth { va: e, rkey: d as u32, len: (d >> 32) as u32 }),
            atomic: op.has_atomic_eth().then_some(AtomicEth {
                va: e,
                rkey: d as u32,
                swap_add: f,
                compare: g,
            }),
            aeth: op.has_aeth().then_some(Aeth {
                syndrome: Syndrome::from_byte(d as u8),
                msn: (d >> 40) as u32,
            }),
            atomic_ack: op.has_atomic_ack().then_some(AtomicAckEth { original: f }),
            imm: op.has_imm().then_some(ImmDt((g as u32).to_be_bytes())),
            ieth: op.has_ieth().then_some(Ieth { rkey: g as u32 }),
            sack: op.has_sack().then_some(MpSack(g)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_packet_comes_back_as_it_was_built(
        mut h in headers(),
        payload in prop::collection::vec(any::<u8>(), 0..300),
        id: u16,
        guess: u16,
        v6: bool,
    ) {
        h.bth.pad = pad_for(payload.len());
        let mut packet = vec![0; h.len()];
        prop_assert_eq!(h.emit(&mut packet), h.len());
        packet.extend(&payload);
        packet.resize(packet.len() + usize::from(h.bth.pad), 0);
        let flow = if v6 {
            Flow::new("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap(), 0xc000)
        } else {
            Flow::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), 0xc000)
        };
        let crc = FlowCrc::new(&flow);
        packet.extend(crc.compute(id, &packet));
        let back = Packet::parse(&packet).unwrap();
        prop_assert_eq!(back.headers, h);
        prop_assert_eq!(back.payload, &payload[..]);
        prop_assert_eq!(crc.verify(&packet, guess), Some(if v6 { 0 } else { id }));
    }

    #[test]
    fn a_truncated_packet_is_refused_or_shorter_but_never_read_beyond(
        mut h in headers(),
        cut in 0usize..80,
    ) {
        h.bth.pad = 0;
        let mut packet = vec![0; h.len() + 4];
        h.emit(&mut packet);
        packet.truncate(cut);
        if cut < h.len() + 4 {
            prop_assert!(Packet::parse(&packet).is_err());
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(p) = Packet::parse(&bytes) {
            let _ = p.to_string();
        }
        let _ = Headers::parse(&bytes);
        let _ = CmMad::parse(&bytes).map(|m| m.to_string());
        let _ = MadHeader::parse(&bytes);
        let _ = CmaHeader::parse(&bytes);
        let _ = Grh::parse(&bytes);
    }

    /// Random bytes rarely look like a MAD, so the test starts from a header that does.
    #[test]
    fn arbitrary_messages_never_panic_and_what_parses_is_stable(
        attr in 0x0fu16..0x1e,
        data in prop::collection::vec(any::<u8>(), 232),
    ) {
        let mut mad = MadHeader::cm(attr, 7).to_bytes().to_vec();
        mad.extend(data);
        if let Ok(parsed) = CmMad::parse(&mad) {
            let _ = parsed.to_string();
            prop_assert_eq!(CmMad::parse(&parsed.to_bytes()), Ok(parsed));
        }
    }

    #[test]
    fn a_flipped_bit_is_found_when_the_identification_is_known(
        len in 4usize..100,
        bit in 0usize..3200,
        id: u16,
    ) {
        let flow = Flow::new("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap(), 0xc000);
        let crc = FlowCrc::new(&flow);
        let mut packet = vec![0x5a; len * 4];
        packet.extend(crc.compute(id, &packet));
        let bit = bit % (packet.len() * 8);
        packet[bit / 8] ^= 1 << (bit % 8);
        // Byte 4 of the BTH may change on the way and is not covered.
        prop_assert_eq!(crc.verify(&packet, id).is_some(), bit / 8 == 4);
    }

    #[test]
    fn blocks_of_an_acknowledgement_come_back_as_they_were(
        list in prop::collection::vec((any::<u32>(), 1..=SackBlock::COUNT_MAX), 0..=SackBlock::MAX),
    ) {
        let list: Vec<SackBlock> = list
            .into_iter()
            .map(|(first, count)| SackBlock { first: Psn::new(first), count })
            .collect();
        let bytes: Vec<u8> = list.iter().flat_map(SackBlock::to_bytes).collect();
        let back = SackBlock::list(&bytes).unwrap();
        prop_assert_eq!(back.is_empty(), list.is_empty());
        prop_assert!(back.iter().eq(list));
    }

    #[test]
    fn arbitrary_blocks_are_refused_or_mean_something(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        mask: u8,
    ) {
        // Most bytes are made zero or one, because otherwise hardly any list would be valid.
        let bytes: Vec<u8> = bytes.iter().map(|b| if b & mask == 0 { b & 1 } else { 0 }).collect();
        if let Ok(blocks) = SackBlock::list(&bytes) {
            prop_assert!(blocks.iter().all(|b| (1..=SackBlock::COUNT_MAX).contains(&b.count)));
            let again: Vec<u8> = blocks.iter().flat_map(|b| b.to_bytes()).collect();
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn distance_undoes_addition(a: u32, n in -0x80_0000..0x80_0000i32) {
        let a = Psn::new(a);
        prop_assert_eq!(a.add(n as u32).diff(a), n);
    }
}
