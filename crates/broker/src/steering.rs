//! The program with which the kernel finds the slot's socket for a packet.
//!
//! All sockets on port 4791 form one `SO_REUSEPORT` group, numbered in the order of binding: first
//! the broker's own (QP1), then the sink, the multicast guard, and the slots' sockets in the order
//! in which they were opened. The program reads the top byte of the destination QPN, byte 5 of the
//! BTH, which is the slot. Packets for free slots go to the sink, whose filter drops everything in
//! the kernel. So stray packets for a former process cost nothing and fill no buffer. Only handshakes for
//! free slots go to the broker, which knows what has become of a slot's process: they are few.
//!
//! The program handles unicast. Multicast goes to every socket that joined the group. But if only
//! one has joined, Linux (`udp_v4_early_demux`, as of 6.18) treats it as unicast and runs the
//! program. The multicast guard prevents this: it takes part in every IPv4 group, and drops
//! everything.

use polypath_wire::ended::HELLO_QKEY;

use crate::sys::udp::Instruction;

/// The broker's own socket in the group.
pub(crate) const OWN_INDEX: u32 = 0;

/// The sink.
pub(crate) const SINK_INDEX: u32 = 1;

/// The index of the first socket of a slot. The multicast guard is before it.
pub(crate) const FIRST_SLOT_INDEX: u32 = 3;

/// The offset of the destination QPN's top byte in the UDP payload.
const SLOT_OFFSET: u32 = 5;

/// The offset of a datagram's Q_Key there.
const QKEY_OFFSET: u32 = 12;

// linux/bpf_common.h
const LOAD_BYTE: u16 = 0x30;
const LOAD_WORD: u16 = 0x20;
const JUMP: u16 = 0x05;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_GREATER: u16 = 0x25;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const ADD: u16 = 0x04;
const RETURN_CONSTANT: u16 = 0x06;
const RETURN_A: u16 = 0x16;

const fn instruction(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

const fn jump(code: u16, k: u32, if_true: u8, if_false: u8) -> Instruction {
    Instruction { code, jt: if_true, jf: if_false, k }
}

/// The program for these slots and the indexes of their sockets, in ascending order of slots. Each
/// packet runs it, so each step leaves half of the slots. A payload that is too short for a BTH goes
/// to index 0 (the kernel's result of a load beyond the end), where it is counted.
pub(crate) fn program(slots: impl IntoIterator<Item = (u8, u32)>) -> Vec<Instruction> {
    let mut program = vec![
        instruction(LOAD_BYTE, SLOT_OFFSET),
        jump(JUMP_IF_EQUAL, 0, 0, 1),
        instruction(RETURN_CONSTANT, OWN_INDEX),
    ];
    program.extend(search(&ranges(slots)));
    program
}

/// The part of the program that finds the range of a slot.
fn search(ranges: &[Range]) -> Vec<Instruction> {
    let (before, after) = ranges.split_at(ranges.len() / 2);
    match (before, after) {
        ([], []) => FREE.to_vec(),
        ([], [range, ..]) => {
            let found = [
                jump(JUMP_IF_AT_LEAST, range.first.into(), 0, 3),
                jump(JUMP_IF_GREATER, range.last.into(), 2, 0),
                instruction(ADD, range.offset),
                instruction(RETURN_A, 0),
            ];
            found.into_iter().chain(FREE).collect()
        }
        (before, [range, ..]) => {
            let before = search(before);
            // A condition can't jump as far as this.
            let over = instruction(JUMP, before.len() as u32);
            let decision = [jump(JUMP_IF_AT_LEAST, range.first.into(), 0, 1), over];
            decision.into_iter().chain(before).chain(search(after)).collect()
        }
        (_, []) => Vec::new(),
    }
}

/// The part of the program for a free slot. Opcodes are not looked at: what has another and the Q_Key of a
/// handshake at this place is as rare as it is harmless.
const FREE: [Instruction; 4] = [
    instruction(LOAD_WORD, QKEY_OFFSET),
    jump(JUMP_IF_EQUAL, HELLO_QKEY, 0, 1),
    instruction(RETURN_CONSTANT, OWN_INDEX),
    instruction(RETURN_CONSTANT, SINK_INDEX),
];

/// Consecutive slots whose sockets are consecutive too.
#[derive(Debug)]
struct Range {
    first: u8,
    last: u8,
    /// Index minus slot, modulo 2^32 as in the program.
    offset: u32,
}

fn ranges(slots: impl IntoIterator<Item = (u8, u32)>) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    for (slot, index) in slots {
        let offset = index.wrapping_sub(slot.into());
        match ranges.last_mut() {
            Some(range) if range.last.checked_add(1) == Some(slot) && range.offset == offset => {
                range.last = slot;
            }
            _ => ranges.push(Range { first: slot, last: slot, offset }),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot_order::SlotOrder;

    /// Runs a program as the kernel does.
    fn run(program: &[Instruction], payload: &[u8]) -> u32 {
        let (mut a, mut at) = (0_u32, 0_usize);
        for step in 0.. {
            assert!(step < 3 + 2 * 8 + 4 + 2, "each step leaves half of 254 slots");
            let i = program[at];
            at += 1;
            let truth = match i.code {
                LOAD_BYTE => {
                    let Some(byte) = payload.get(i.k as usize) else { return 0 };
                    a = u32::from(*byte);
                    continue;
                }
                LOAD_WORD => {
                    let word = payload.get(i.k as usize..).and_then(|rest| rest.first_chunk());
                    let Some(word) = word else { return 0 };
                    a = u32::from_be_bytes(*word);
                    continue;
                }
                ADD => {
                    a = a.wrapping_add(i.k);
                    continue;
                }
                RETURN_CONSTANT => return i.k,
                RETURN_A => return a,
                JUMP_IF_EQUAL => a == i.k,
                JUMP_IF_GREATER => a > i.k,
                JUMP_IF_AT_LEAST => a >= i.k,
                JUMP => {
                    at += i.k as usize;
                    continue;
                }
                code => panic!("instruction {code:#x}"),
            };
            at += usize::from(if truth { i.jt } else { i.jf });
        }
        unreachable!("a program ends")
    }

    /// The index of a slot's socket, if sockets are opened from slot `base` on and then for the
    /// slots before it.
    fn opened_from(base: u8, slot: u8) -> u32 {
        FIRST_SLOT_INDEX + (u32::from(slot) + 254 - u32::from(base)) % 254
    }

    #[test]
    fn every_slot_leads_to_its_owner_or_the_sink() {
        let sets: [&[u8]; 5] = [&[], &[1], &[1, 2, 3, 7, 8, 254], &[254], &[2, 4, 6]];
        for (owned, base) in sets.into_iter().flat_map(|set| [(set, 1), (set, 3), (set, 254)]) {
            let program = program(owned.iter().map(|&slot| (slot, opened_from(base, slot))));
            for slot in 0..=255_u8 {
                let expect = match slot {
                    0 => OWN_INDEX,
                    slot if owned.contains(&slot) => opened_from(base, slot),
                    _ => SINK_INDEX,
                };
                let mut packet = [0, 0, 0, 0, 0, slot, 0, 1, 0, 0, 0, 0, 0x80, 0x50, 0x4f, 0x4b];
                let got = run(&program, &packet);
                assert_eq!(got, expect, "slot {slot} of {owned:?} from {base}");
                packet[15] = 0x4c;
                let expect = if expect == SINK_INDEX { OWN_INDEX } else { expect };
                assert_eq!(run(&program, &packet), expect, "a handshake for slot {slot}");
            }
        }
    }

    #[test]
    fn slots_in_order_make_a_short_program() {
        let all = program((1..=254).map(|slot| (slot, opened_from(100, slot))));
        assert_eq!(all.len(), 3 + 2 + 2 * 8);
    }

    #[test]
    fn slots_in_any_order_make_a_legal_program() {
        for seed in 0..20 {
            let order = SlotOrder::new(seed);
            let index = |slot| order.place(slot) as u32 + FIRST_SLOT_INDEX;
            for opened in [1, 2, 3, 100, 253, 254] {
                let slots = (1..=254).filter(|slot| order.place(*slot) < opened);
                let program = program(slots.map(|slot| (slot, index(slot))));
                assert!(program.len() <= 4096, "BPF_MAXINSNS");
                for slot in 1..=254 {
                    let there = order.place(slot) < opened;
                    let expect = if there { index(slot) } else { SINK_INDEX };
                    let packet = [0, 0, 0, 0, 0, slot, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                    assert_eq!(run(&program, &packet), expect, "{slot} of {opened}");
                }
            }
        }
    }

    #[test]
    fn a_payload_without_a_bth_goes_to_the_broker() {
        assert_eq!(run(&program([(1, 2)]), &[1, 2, 3]), OWN_INDEX);
    }
}
