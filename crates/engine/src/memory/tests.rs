//! Tests of what keys allow and forbid; see IBTA 10.6 and `man 3 ibv_reg_mr`.

use polypath_transport::{Access, Fault, FlushScope, RemoteAccess, RemoteKey, Sge};

use super::*;

const PD: u32 = 7;
const QPN: u32 = 0x1_0002;
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);
const READ: Access = Access::REMOTE_READ;
const WRITE: Access = Access::REMOTE_WRITE;

/// Pages of the test, whose protection can be changed.
struct Pages {
    at: *mut u8,
    len: usize,
}

impl Pages {
    fn new(pages: usize, protection: libc::c_int) -> Self {
        let len = pages * 4096;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: this is a new mapping.
        let at = unsafe { libc::mmap(place::place(), len, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self { at: at.cast(), len }
    }

    fn addr(&self) -> usize {
        self.at as usize
    }

    /// Unmaps one page.
    fn punch(&self, page: usize) {
        assert!((page + 1) * 4096 <= self.len);
        // SAFETY: within the mapping, which nobody else uses.
        assert_eq!(unsafe { libc::munmap(self.at.add(page * 4096).cast(), 4096) }, 0);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this is the value's own mapping; holes in it are no error.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

fn sge(region: &Region, addr: u64, len: u32) -> Sge {
    Sge { addr, len, lkey: region.key() }
}

pub(super) fn named(pd: u32, qpn: u32, rkey: u32) -> RemoteKey {
    RemoteKey { pd, qpn, rkey }
}

pub(super) fn remote(
    pd: u32,
    qpn: u32,
    rkey: u32,
    va: u64,
    len: u32,
    rights: Access,
) -> RemoteAccess {
    RemoteAccess { key: named(pd, qpn, rkey), va, len, rights }
}

#[test]
fn range_is_checked_to_the_byte_and_cannot_wrap() {
    let memory = vec![0u8; 1000];
    let table = MemoryTable::new();
    let base = memory.as_ptr() as u64;
    let region = table.register(PD, base as usize, 1000, 0x5000, ALL).unwrap();
    let check = |addr, len| table.resolve(PD, sge(&region, addr, len), Access::LOCAL_WRITE);
    assert_eq!(check(0x5000, 1000), Ok(Segment::checked(base, 1000)));
    assert_eq!(check(0x5000 + 999, 1), Ok(Segment::checked(base + 999, 1)));
    for (addr, len) in [
        (0x5000, 1001),
        (0x4fff, 1),
        (0x5000 + 1000, 1),
        (0x5000 + 999, 2),
        (0, 1),
        (u64::MAX, 1),
        (u64::MAX, u32::MAX),
        (0x5000, u32::MAX),
    ] {
        assert_eq!(check(addr, len), Err(Fault::Range), "{addr:#x} {len}");
        let remote = table.resolve_remote(&remote(PD, QPN, region.key(), addr, len, WRITE));
        assert_eq!(remote, Err(Fault::Range), "{addr:#x} {len}");
    }
}

#[test]
fn a_given_key_is_the_regions_unless_another_has_it() {
    let memory = [0u8; 64];
    let at = (memory.as_ptr() as usize, 64);
    let table = MemoryTable::new();
    let register = |key| table.register_with_key(PD, at, 0x9000, ALL, key);
    let region = register(0xabcd_ef01).unwrap();
    assert_eq!((region.key(), region.iova()), (0xabcd_ef01, 0x9000));
    assert!(table.resolve(PD, sge(&region, 0x9000, 64), Access::LOCAL_WRITE).is_ok());
    assert!(table.resolve_remote(&remote(PD, QPN, 0xabcd_ef01, 0x9000, 8, READ)).is_ok());
    let near = remote(PD, QPN, 0xabcd_ef00, 0x9000, 8, READ);
    assert_eq!(table.resolve_remote(&near), Err(Fault::Key));
    // The last byte is the consumer's if it is a window's key, so only the bits above must differ.
    for taken in [0xabcd_ef01, 0xabcd_ef02] {
        assert_eq!(register(taken).unwrap_err().errno, libc::EADDRINUSE);
    }
    let (_, rkey) = table.alloc_window(PD, WindowType::Type2).unwrap();
    assert_eq!(register(rkey).unwrap_err().errno, libc::EADDRINUSE);
    for nameless in [0, 1, 0xff] {
        assert_eq!(register(nameless).unwrap_err().errno, libc::EINVAL);
    }
    table.deregister(0xabcd_ef01, || ()).unwrap();
    assert_eq!(register(0xabcd_ef02).unwrap().key(), 0xabcd_ef02);
}

#[test]
fn key_holds_in_its_protection_domain_only_and_with_all_its_bits() {
    let memory = [0u8; 64];
    let table = MemoryTable::new();
    let region = table.register(PD, memory.as_ptr() as usize, 64, 0, ALL).unwrap();
    let at = |pd, key| table.resolve_remote(&remote(pd, QPN, key, 0, 8, READ));
    assert!(at(PD, region.key()).is_ok());
    assert_eq!(at(PD + 1, region.key()), Err(Fault::Key));
    for bit in 0..32 {
        assert_eq!(at(PD, region.key() ^ (1 << bit)), Err(Fault::Key), "bit {bit}");
    }
    let local = Sge { addr: 0, len: 8, lkey: region.key() ^ 1 };
    assert_eq!(table.resolve(PD, local, Access::empty()), Err(Fault::Key));
}

#[test]
fn rights_are_those_registered() {
    let memory = [0u64; 8];
    let table = MemoryTable::new();
    for access in [Access::empty(), Access::LOCAL_WRITE, READ, ALL] {
        let region = table.register(PD, memory.as_ptr() as usize, 64, 0, access).unwrap();
        for wanted in [READ, WRITE, Access::REMOTE_ATOMIC] {
            let got = table.resolve_remote(&remote(PD, QPN, region.key(), 0, 8, wanted));
            assert_eq!(got.is_ok(), access.contains(wanted));
            assert!(got.is_ok() || got == Err(Fault::Rights));
        }
        let write = table.resolve(PD, sge(&region, 0, 8), Access::LOCAL_WRITE);
        assert_eq!(write.is_ok(), access.contains(Access::LOCAL_WRITE));
        assert!(table.resolve(PD, sge(&region, 0, 8), Access::empty()).is_ok(), "local reads");
    }
    let error = table.register(PD, memory.as_ptr() as usize, 64, 0, WRITE).unwrap_err();
    assert_eq!(error.errno, libc::EINVAL, "remote rights to write want the local one");
}

#[test]
fn access_without_bytes_is_not_checked_and_touches_nothing() {
    let table = MemoryTable::new();
    let got = table.resolve(PD, Sge { addr: 1, len: 0, lkey: 5 }, Access::LOCAL_WRITE).unwrap();
    assert_eq!(got.bytes(), 0);
    assert!(table.resolve_remote(&remote(PD, QPN, 5, 1, 0, WRITE)).is_ok());
    store(got, &[]).unwrap();
}

#[test]
fn zero_based_region_counts_from_zero() {
    let memory = [0u8; 64];
    let table = MemoryTable::new();
    let base = memory.as_ptr() as u64;
    let region = table.register(PD, base as usize, 64, base, ALL | Access::ZERO_BASED).unwrap();
    assert_eq!(
        table.resolve_remote(&remote(PD, QPN, region.key(), 60, 4, READ)),
        Ok(Segment::checked(base + 60, 4))
    );
    assert_eq!(
        table.resolve_remote(&remote(PD, QPN, region.key(), base, 4, READ)),
        Err(Fault::Range)
    );
}

#[test]
fn registration_refuses_what_can_not_be_accessed() {
    let table = MemoryTable::new();
    let pages = Pages::new(3, libc::PROT_READ | libc::PROT_WRITE);
    let reg =
        |addr, len, access| table.register(PD, addr, len, 0, access).map(drop).map_err(|e| e.errno);
    assert_eq!(reg(pages.addr() + 100, 3 * 4096 - 100, ALL), Ok(()));
    pages.punch(1);
    assert_eq!(reg(pages.addr(), 3 * 4096, ALL), Err(libc::EFAULT));
    assert_eq!(reg(pages.addr(), 3 * 4096, Access::empty()), Err(libc::EFAULT));
    assert_eq!(reg(pages.addr(), 4096, ALL), Ok(()));
    assert_eq!(reg(pages.addr(), 4097, ALL), Err(libc::EFAULT));
    let read_only = Pages::new(1, libc::PROT_READ);
    assert_eq!(reg(read_only.addr(), 4096, READ), Ok(()));
    assert_eq!(reg(read_only.addr(), 4096, Access::LOCAL_WRITE), Err(libc::EFAULT));
    let no_access = Pages::new(1, libc::PROT_NONE);
    assert_eq!(reg(no_access.addr(), 4096, READ), Err(libc::EFAULT));
    assert_eq!(reg(0, 4096, READ), Err(libc::EFAULT));
    assert_eq!(reg(usize::MAX - 10, 4096, READ), Err(libc::EINVAL));
    assert_eq!(reg(0, 0, READ), Ok(()), "nothing to access");
}

#[test]
fn list_of_mappings_says_the_same_as_the_kernel() {
    let pages = Pages::new(3, libc::PROT_READ | libc::PROT_WRITE);
    pages.punch(1);
    let read_only = Pages::new(1, libc::PROT_READ);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    for (addr, len, write) in [
        (pages.addr(), 4096, true),
        (pages.addr() + 4095, 1, true),
        (pages.addr(), 4097, true),
        (pages.addr() + 4096, 1, false),
        (pages.addr() + 2 * 4096, 4096, true),
        (pages.addr(), 3 * 4096, false),
        (read_only.addr(), 4096, false),
        (read_only.addr(), 4096, true),
        (16, 16, false),
        (usize::MAX - 5, 100, false),
    ] {
        assert_eq!(
            probe::mapped(&maps, addr, len, write),
            probe::accessible(addr, len, write),
            "{addr:#x} {len} {write}"
        );
    }
}

/// The whole address space is registered. Access to an unmapped part is a fault, not a signal.
#[test]
fn on_demand_region_faults_where_there_is_no_memory() {
    let table = MemoryTable::new();
    let everything = table
        .register(PD, 0, usize::MAX, 0, ALL | Access::ON_DEMAND)
        .expect("implicit on-demand region");
    let pages = Pages::new(3, libc::PROT_READ | libc::PROT_WRITE);
    let at = |addr: usize, len, access| {
        table.resolve_remote(&remote(PD, QPN, everything.key(), addr as u64, len, access))
    };
    let good = at(pages.addr() + 5, 8192, WRITE).unwrap();
    store(good, &[9; 8192]).unwrap();
    pages.punch(1);
    assert_eq!(at(pages.addr() + 5, 8192, WRITE), Err(Fault::Range));
    assert_eq!(at(pages.addr() + 4096, 1, READ), Err(Fault::Range));
    assert_eq!(at(0, 1, READ), Err(Fault::Range));
    assert_eq!(at(usize::MAX - 1, 8, READ), Err(Fault::Range));
    let read_only = Pages::new(1, libc::PROT_READ);
    assert!(at(read_only.addr(), 10, READ).is_ok());
    assert_eq!(at(read_only.addr(), 10, WRITE), Err(Fault::Range));

    // An explicit on-demand region may have holes when it is registered.
    let later = table
        .register(PD, pages.addr(), 3 * 4096, 0, ALL | Access::ON_DEMAND)
        .expect("explicit on-demand region with a hole");
    let local = |addr, len| table.resolve(PD, sge(&later, addr, len), Access::LOCAL_WRITE);
    assert!(local(0, 4096).is_ok());
    assert_eq!(local(0, 4097), Err(Fault::Range));
}

#[test]
fn deregistered_key_is_dead_before_the_barrier_and_caches_notice() {
    let memory = [0u8; 64];
    let (table, cache) = (MemoryTable::new(), KeyCache::new());
    let region = table.register(PD, memory.as_ptr() as usize, 64, 0, ALL).unwrap();
    let read = |key| cache.resolve_remote(&table, &remote(PD, QPN, key, 0, 8, READ));
    let other = table.register(PD, memory.as_ptr() as usize, 64, 0, ALL).unwrap();
    for _ in 0..2 {
        assert!(read(region.key()).is_ok());
        assert!(read(other.key()).is_ok());
    }
    let mut barriers = 0;
    table
        .deregister(region.key(), || {
            assert_eq!(read(region.key()), Err(Fault::Key));
            barriers += 1;
        })
        .unwrap();
    assert_eq!(barriers, 1);
    assert!(read(other.key()).is_ok());
    let error = table.deregister(region.key(), || panic!("nothing to wait for")).unwrap_err();
    assert_eq!(error.errno, libc::EINVAL);
    assert_eq!(table.len(), 1);
}

#[test]
fn cache_gives_what_the_table_gives() {
    let memory = [0u8; 4096];
    let (table, cache) = (MemoryTable::new(), KeyCache::new());
    let mut keys = Vec::new();
    let mut seed = 5u32;
    for round in 0..2000u32 {
        seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        match seed >> 29 {
            0 if !keys.is_empty() => {
                let key: u32 = keys.swap_remove(seed as usize % keys.len());
                table.deregister(key, || ()).unwrap();
                keys.push(key ^ 0x100);
                keys.pop();
            }
            1 | 2 if keys.len() < 40 => {
                let access = if seed & 64 == 0 { ALL } else { READ };
                let region = table.register(PD, memory.as_ptr() as usize, 4096, 0, access).unwrap();
                keys.push(region.key());
            }
            _ if !keys.is_empty() => {
                let key = keys[(seed >> 8) as usize % keys.len()] ^ u32::from(seed & 0xf00 == 0);
                let va = u64::from(round * 7 % 5000);
                let ours = cache.resolve_remote(&table, &remote(PD, QPN, key, va, 64, WRITE));
                assert_eq!(ours, table.resolve_remote(&remote(PD, QPN, key, va, 64, WRITE)));
                let sge = Sge { addr: va, len: 64, lkey: key };
                let ours = cache.resolve(&table, PD, sge, Access::LOCAL_WRITE);
                assert_eq!(ours, table.resolve(PD, sge, Access::LOCAL_WRITE));
            }
            _ => {}
        }
    }
}

#[test]
fn reregistration_keeps_the_key_and_fails_without_harm() {
    let (first, second) = ([0u8; 64], [0u8; 128]);
    let table = MemoryTable::new();
    let region = table.register(PD, first.as_ptr() as usize, 64, 0, READ).unwrap();
    let key = region.key();
    let range = Some((second.as_ptr() as usize, 128, 0x100));
    let old = table.reregister(key, Some(9), range, Some(ALL), || ()).unwrap();
    assert_eq!((old.pd(), old.len()), (PD, 64));
    let new = table.region(key).unwrap();
    assert_eq!((new.key(), new.pd(), new.len(), new.iova()), (key, 9, 128, 0x100));
    assert!(table.resolve_remote(&remote(9, QPN, key, 0x100 + 127, 1, WRITE)).is_ok());
    assert_eq!(table.resolve_remote(&remote(PD, QPN, key, 0, 1, READ)), Err(Fault::Key));
    let bad = table.reregister(key, None, Some((16, 4096, 0)), None, || panic!("no change"));
    assert_eq!(bad.unwrap_err().errno, libc::EFAULT);
    assert!(table.resolve_remote(&remote(9, QPN, key, 0x100, 1, WRITE)).is_ok());
}

/// A region and a window of each type in one table.
fn with_window(kind: WindowType, memory: &[u8]) -> (MemoryTable, u32, u32, u32) {
    let table = MemoryTable::new();
    let base = memory.as_ptr() as usize;
    let region = table.register(PD, base, memory.len(), 0x1000, ALL).unwrap();
    let (window, key) = table.alloc_window(PD, kind).unwrap();
    (table, region.key(), window, key)
}

fn next(key: u32) -> u32 {
    (key & !0xff) | (key.wrapping_add(1) & 0xff)
}

#[test]
fn type_2_window_opens_part_of_a_region_to_one_queue_pair() {
    let memory = [0u8; 100];
    let (table, region, window, key) = with_window(WindowType::Type2, &memory);
    let at =
        |qpn, key, va, len, access| table.resolve_remote(&remote(PD, qpn, key, va, len, access));
    assert_eq!(at(QPN, key, 0x1010, 1, READ), Err(Fault::Key), "not bound");
    let bound = next(key);
    let info = BindInfo { region, addr: 0x1010, len: 20, access: READ };
    table.stage_bind(window, named(PD, QPN, bound), info).unwrap();
    assert_eq!(at(QPN, bound, 0x1010, 1, READ), Err(Fault::Key), "posted, not executed");
    table.bind(window, named(PD, QPN, bound)).unwrap();
    let segment = at(QPN, bound, 0x1010, 20, READ).unwrap();
    assert_eq!(segment.addr(), memory.as_ptr() as usize + 16);
    assert_eq!(at(QPN, bound, 0x1010, 21, READ), Err(Fault::Range));
    assert_eq!(at(QPN, bound, 0x100f, 1, READ), Err(Fault::Range));
    assert_eq!(at(QPN, bound, 0x1010, 1, WRITE), Err(Fault::Rights));
    assert_eq!(at(QPN + 1, bound, 0x1010, 1, READ), Err(Fault::Key), "another queue pair");
    let local = Sge { addr: 0x1010, len: 1, lkey: bound };
    assert_eq!(table.resolve(PD, local, Access::empty()), Err(Fault::Key), "not for local use");

    let again = next(bound);
    table.stage_bind(window, named(PD, QPN, again), info).unwrap();
    assert_eq!(table.bind(window, named(PD, QPN, again)), Err(Fault::Key), "still bound");
    assert_eq!(table.deregister(region, || ()).unwrap_err().errno, libc::EBUSY);
    assert_eq!(
        table.reregister(region, None, None, Some(READ), || ()).unwrap_err().errno,
        libc::EBUSY
    );

    assert_eq!(table.invalidate(named(PD, QPN + 1, bound)), Err(Fault::Key));
    table.invalidate(named(PD, QPN, bound)).unwrap();
    assert_eq!(table.invalidate(named(PD, QPN, bound)), Err(Fault::Key), "once");
    assert_eq!(at(QPN, bound, 0x1010, 1, READ), Err(Fault::Key));
    table.stage_bind(window, named(PD, QPN, bound), info).unwrap();
    table.bind(window, named(PD, QPN, bound)).expect("with the key that it had");
    assert!(at(QPN, bound, 0x1010, 1, READ).is_ok());
    table.invalidate(named(PD, QPN, bound)).unwrap();
    table.deregister(region, || ()).unwrap();
}

#[test]
fn type_1_window_is_moved_by_binding_and_closed_by_length_zero() {
    let memory = [0u8; 100];
    let (table, region, window, first) = with_window(WindowType::Type1, &memory);
    let bind = |key, addr, len| {
        let info = BindInfo { region, addr, len, access: WRITE };
        table.stage_bind(window, named(PD, QPN, key), info).unwrap();
        table.bind(window, named(PD, QPN, key))
    };
    let write = |key, va| table.resolve_remote(&remote(PD, QPN + 5, key, va, 1, WRITE));
    let second = next(first);
    bind(first, 0x1000, 10).unwrap();
    assert!(write(first, 0x1009).is_ok(), "any queue pair of the protection domain");
    bind(second, 0x1020, 10).unwrap();
    assert_eq!(write(first, 0x1009), Err(Fault::Key), "the old key is dead");
    assert!(write(second, 0x1020).is_ok());
    assert_eq!(table.invalidate(named(PD, QPN, second)), Err(Fault::Rights), "type 1 can't be");
    assert_eq!(table.region(region).unwrap().windows(), 1);
    bind(next(second), 0, 0).unwrap();
    assert_eq!(table.region(region).unwrap().windows(), 0);
    assert_eq!(write(next(second), 0x1020), Err(Fault::Key));
}

#[test]
fn bind_is_refused_beyond_what_the_region_allows() {
    let memory = [0u8; 100];
    let (table, region, window, key) = with_window(WindowType::Type2, &memory);
    let base = memory.as_ptr() as usize;
    let unbindable = table.register(PD, base, 100, 0, READ).unwrap().key();
    let foreign = table.register(PD + 1, base, 100, 0, ALL).unwrap().key();
    let readable = table.register(PD, base, 100, 0, READ | Access::MW_BIND).unwrap().key();
    let key = next(key);
    for (region, addr, len, access, fault) in [
        (unbindable, 0, 10, READ, Fault::Rights),
        (foreign, 0, 10, READ, Fault::Key),
        (readable, 0, 10, WRITE, Fault::Rights),
        (region, 0x1000, 101, READ, Fault::Range),
        (region, 0xfff, 1, READ, Fault::Range),
        (region, 0x1000, u64::MAX, READ, Fault::Range),
        (region, 0x1000, 0, READ, Fault::Range),
        (region ^ 1, 0x1000, 1, READ, Fault::Key),
        (window << 8, 0x1000, 1, READ, Fault::Key),
    ] {
        table
            .stage_bind(window, named(PD, QPN, key), BindInfo { region, addr, len, access })
            .unwrap();
        assert_eq!(table.bind(window, named(PD, QPN, key)), Err(fault));
    }
    assert_eq!(table.bind(window, named(PD, QPN, key)), Err(Fault::Key), "nothing staged");
    let info = BindInfo { region, addr: 0x1000, len: 1, access: READ };
    assert!(table.stage_bind(window, named(PD + 1, QPN, key), info).is_err());
    let variant = table.stage_bind(window, named(PD, QPN, key & 0xff), info);
    assert_eq!(variant.unwrap(), key, "the rest is the window's");
    table.unstage_bind(window, QPN, key);
    for _ in 0..STAGED_BINDS_MAX {
        table.stage_bind(window, named(PD, QPN, key), info).unwrap();
    }
    let error = table.stage_bind(window, named(PD, QPN, key), info).unwrap_err();
    assert_eq!(error.errno, libc::ENOMEM);
    table.unstage_bind(window, QPN, key);
    table.stage_bind(window, named(PD, QPN, key), info).unwrap();
}

/// Two queue pairs post binds of a window with the same key. They execute them in the other order.
#[test]
fn each_queue_pair_executes_its_own_bind() {
    let memory = [0u8; 100];
    let (table, region, window, key) = with_window(WindowType::Type2, &memory);
    let (key, other) = (next(key), QPN + 1);
    let stage = |qpn, addr| {
        let info = BindInfo { region, addr, len: 1, access: READ };
        table.stage_bind(window, named(PD, qpn, key), info).unwrap();
    };
    stage(QPN, 0x1010);
    stage(other, 0x1020);
    assert!(!table.has_windows_of(QPN + 2));
    table.bind(window, named(PD, other, key)).unwrap();
    assert!(table.resolve_remote(&remote(PD, other, key, 0x1020, 1, READ)).is_ok());
    // One that takes its bind back leaves that of the other.
    stage(other, 0x1030);
    table.unstage_bind(window, QPN, key);
    assert!(!table.has_windows_of(QPN));
    stage(QPN, 0x1040);
    table.cancel_bind(window, QPN, key);
    table.invalidate(named(PD, other, key)).unwrap();
    assert!(table.has_windows_of(other), "its second bind");
    // Nor does one that is destroyed before it posts its bind.
    stage(QPN, 0x1050);
    table.forget_qp(QPN);
    assert!(!table.has_windows_of(QPN) && table.has_windows_of(other));
    table.forget_qp(other);
    for _ in 0..STAGED_BINDS_MAX {
        stage(QPN, 0x1060);
    }
}

#[test]
fn window_that_goes_frees_its_region() {
    let memory = [0u8; 100];
    let (table, region, window, key) = with_window(WindowType::Type2, &memory);
    let info = BindInfo { region, addr: 0x1000, len: 1, access: READ };
    table.stage_bind(window, named(PD, QPN, next(key)), info).unwrap();
    table.bind(window, named(PD, QPN, next(key))).unwrap();
    assert!(table.uses_pd(PD) && !table.uses_pd(PD + 1));
    table.forget_qp(QPN);
    assert_eq!(table.region(region).unwrap().windows(), 0);
    table.stage_bind(window, named(PD, QPN, key), info).unwrap();
    table.bind(window, named(PD, QPN, key)).unwrap();
    assert!(table.dealloc_window(region >> 8, || ()).is_err(), "not a window");
    table.dealloc_window(window, || ()).unwrap();
    assert_eq!(table.resolve_remote(&remote(PD, QPN, key, 0x1000, 1, READ)), Err(Fault::Key));
    table.deregister(region, || ()).unwrap();
    assert!(table.is_empty());
}

#[test]
fn zero_based_window_counts_from_zero() {
    let memory = [0u8; 100];
    let (table, region, window, key) = with_window(WindowType::Type2, &memory);
    let access = READ | Access::ZERO_BASED;
    table
        .stage_bind(
            window,
            named(PD, QPN, next(key)),
            BindInfo { region, addr: 0x1030, len: 4, access },
        )
        .unwrap();
    table.bind(window, named(PD, QPN, next(key))).unwrap();
    let got = table.resolve_remote(&remote(PD, QPN, next(key), 0, 4, READ)).unwrap();
    assert_eq!(got.addr(), memory.as_ptr() as usize + 0x30);
}

#[test]
fn keys_are_unlike_each_other() {
    let memory = [0u8; 8];
    let table = MemoryTable::new();
    let keys: std::collections::HashSet<u32> = (0..1000)
        .map(|_| table.register(PD, memory.as_ptr() as usize, 8, 0, READ).unwrap().key())
        .collect();
    assert_eq!(keys.len(), 1000);
    // Each of the upper bits is set in about half of the keys.
    for bit in 0..32 {
        let set = keys.iter().filter(|key| *key >> bit & 1 == 1).count();
        assert!((350..650).contains(&set), "bit {bit}: {set}");
    }
}

/// Annex A19: key, protection domain, rights and range are checked; for a whole region, the range
/// is not.
#[test]
fn a_flush_is_checked_as_any_access_is() {
    let memory = [0u8; 64];
    let table = MemoryTable::new();
    let flush = Access::FLUSH_GLOBAL;
    let region = |access| table.register(PD, memory.as_ptr() as usize, 64, 0x1000, access).unwrap();
    let (good, other) = (region(flush), region(READ));
    let check = |pd, key, scope, access| table.check_flush(named(pd, QPN, key), scope, access);
    let range = |va, len| FlushScope::Range { va, len };
    for scope in [range(0x1000, 64), range(0x103f, 1), range(0x1040, 0), FlushScope::Region] {
        assert_eq!(check(PD, good.key(), scope, flush), Ok(()), "{scope:?}");
        assert_eq!(check(PD, other.key(), scope, flush), Err(Fault::Rights), "{scope:?}");
        assert_eq!(check(PD + 1, good.key(), scope, flush), Err(Fault::Key), "{scope:?}");
        assert_eq!(check(PD, good.key() ^ 1, scope, flush), Err(Fault::Key), "{scope:?}");
        let persistent = Access::FLUSH_PERSISTENT;
        assert_eq!(check(PD, good.key(), scope, persistent), Err(Fault::Rights), "{scope:?}");
    }
    for scope in [range(0x1000, 65), range(0xfff, 1), range(0x1041, 0), range(u64::MAX, 1)] {
        assert_eq!(check(PD, good.key(), scope, flush), Err(Fault::Range), "{scope:?}");
    }
}

#[test]
fn atomics_want_memory_that_is_aligned() {
    let memory = [0u64; 4];
    let table = MemoryTable::new();
    let askew = memory.as_ptr() as usize + 4;
    let region = table.register(PD, askew, 16, 0, ALL).unwrap();
    let at =
        |va| table.resolve_remote(&remote(PD, QPN, region.key(), va, 8, Access::REMOTE_ATOMIC));
    assert_eq!(at(0), Err(Fault::Range));
    assert!(at(4).is_ok());
}

#[test]
fn many_threads_look_up_while_keys_come_and_go() {
    let memory = [0u8; 64];
    let table = MemoryTable::new();
    let stable = table.register(PD, memory.as_ptr() as usize, 64, 0, READ).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let cache = KeyCache::new();
                for _ in 0..20_000 {
                    cache
                        .resolve_remote(&table, &remote(PD, QPN, stable.key(), 0, 1, READ))
                        .unwrap();
                }
            });
        }
        for _ in 0..500 {
            let region = table.register(PD, memory.as_ptr() as usize, 64, 0, READ).unwrap();
            let cache = KeyCache::new();
            assert!(
                cache.resolve_remote(&table, &remote(PD, QPN, region.key(), 0, 1, READ)).is_ok()
            );
            table.deregister(region.key(), || ()).unwrap();
            let gone = cache.resolve_remote(&table, &remote(PD, QPN, region.key(), 0, 1, READ));
            assert_eq!(gone, Err(Fault::Key));
        }
    });
}
