//! The ledger: what is written down of rdma_cm ids, for the broker that takes this one's place if it is
//! killed. And the answer to the last command of each process, which may not have got it.
//!
//! It is memory without a name (`memfd_create(2)`) that the keeper has, too. Each id and each process has a
//! page with room for two records, which are written in turn: a broker that is killed while it writes leaves
//! the record before.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use polypath_cm::KeptId;
use polypath_ipc::message;
use rustix::fs::{FallocateFlags, MemfdFlags, SeekFrom, fallocate, memfd_create, seek};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The first part for answers. Those before are for ids, by their numbers.
const ANSWERS: u32 = 1 << 16;
/// The bytes of a part, which is a page, so that it can be given back.
const PART: u64 = 4096;
/// The bytes of one record.
const RECORD: usize = PART as usize / 2;
/// What comes before the contents: the number of the record in the order of writing, the length of the
/// contents, and a check sum of both and of them.
const HEADER: usize = 4 + 4 + 8;

/// The ledger of a broker.
#[derive(Debug)]
pub(crate) struct Ledger {
    memory: File,
    /// The number of the last record of each part that has any, and the check sum of its contents. Most
    /// commands change no id.
    written: BTreeMap<u32, (u32, u64)>,
    /// The parts for the answers to processes.
    answers: BTreeMap<u32, u32>,
}

/// The answer to the last command of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptAnswer {
    /// The process.
    pub(crate) pid: u32,
    /// The number of the command.
    pub(crate) number: u64,
    /// The response, or the errno.
    pub(crate) answer: Result<Vec<u8>, i32>,
}

impl Ledger {
    /// An empty one.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self::of(memfd_create("polypath-ledger", MemfdFlags::CLOEXEC)?))
    }

    fn of(memory: OwnedFd) -> Self {
        Self { memory: memory.into(), written: BTreeMap::new(), answers: BTreeMap::new() }
    }

    /// The ledger of a broker that was killed.
    pub(crate) fn left(memory: OwnedFd) -> Self {
        Self::of(memory)
    }

    /// Writes down what is known of an id.
    ///
    /// # Errors
    /// It is too long, or there is no memory.
    pub(crate) fn write(&mut self, id: &KeptId) -> io::Result<()> {
        let contents = message::encode(id).map_err(io::Error::other)?;
        self.put(id.number(), &contents)
    }

    /// Writes down the answer to the last command of a process.
    ///
    /// # Errors
    /// It is too long, or there is no memory. Then nothing is written down of the process.
    pub(crate) fn write_answer(&mut self, answer: &KeptAnswer) -> io::Result<()> {
        let part = match self.answers.get(&answer.pid) {
            Some(part) => *part,
            None => self.free_part(),
        };
        self.answers.insert(answer.pid, part);
        let contents = message::encode(answer).map_err(io::Error::other);
        let written = contents.and_then(|contents| self.put(part, &contents));
        if written.is_err() {
            self.erase_answer(answer.pid);
        }
        written
    }

    fn free_part(&self) -> u32 {
        let taken: BTreeSet<u32> = self.answers.values().copied().collect();
        (ANSWERS..u32::MAX).find(|part| !taken.contains(part)).unwrap_or(u32::MAX)
    }

    /// Forgets a process.
    pub(crate) fn erase_answer(&mut self, pid: u32) {
        if let Some(part) = self.answers.remove(&pid) {
            self.erase(part);
        }
    }

    /// All answers that are written down.
    pub(crate) fn answers(&self) -> Vec<KeptAnswer> {
        self.decoded(|part| part >= ANSWERS)
    }

    fn put(&mut self, id: u32, contents: &[u8]) -> io::Result<()> {
        if contents.len() > RECORD - HEADER {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let sum = check_sum(contents);
        let number = match self.written.get(&id) {
            Some((_, last)) if *last == sum => return Ok(()),
            Some((number, _)) => number.wrapping_add(1).max(1),
            None => 1,
        };
        let length = contents.len() as u32;
        let head = [number.to_ne_bytes(), length.to_ne_bytes()].concat();
        let of_record = check_sum(&[&head, contents].concat());
        let record = [&head, &of_record.to_ne_bytes()[..], contents].concat();
        self.memory.write_all_at(&record, place(id, number & 1))?;
        self.written.insert(id, (number, sum));
        Ok(())
    }

    /// Forgets an id.
    pub(crate) fn erase(&mut self, id: u32) {
        if self.written.remove(&id).is_some() {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if fallocate(&self.memory, hole, place(id, 0), PART).is_err() {
                // An old kernel: what is not valid says as much as nothing.
                let _ = self.memory.write_all_at(&[0; PART as usize], place(id, 0));
            }
        }
    }

    /// All ids that are written down. What does not decode is left out.
    pub(crate) fn read(&self) -> Vec<KeptId> {
        self.decoded(|part| part < ANSWERS)
    }

    /// The parts that are no holes.
    fn parts(&self) -> Vec<u32> {
        let (mut parts, mut from) = (Vec::new(), 0);
        while let Ok(at) = seek(&self.memory, SeekFrom::Data(from)) {
            parts.extend(u32::try_from(at / PART));
            from = (at / PART + 1) * PART;
        }
        parts
    }

    /// What is written down in these parts.
    fn decoded<T: DeserializeOwned>(&self, these: impl Fn(u32) -> bool) -> Vec<T> {
        let parts = self.parts().into_iter().filter(|part| these(*part));
        parts.filter_map(|part| message::decode(&self.last(part)?).ok()).collect()
    }

    /// The last whole record of an id.
    fn last(&self, id: u32) -> Option<Vec<u8>> {
        let mut part = [0; PART as usize];
        let mut got = 0;
        while let Ok(n @ 1..) = self.memory.read_at(&mut part[got..], place(id, 0) + got as u64) {
            got += n;
        }
        let records = part.chunks(RECORD).filter_map(contents);
        records.max_by_key(|(number, _)| *number).map(|(_, contents)| contents.to_vec())
    }
}

impl AsFd for Ledger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

fn place(id: u32, half: u32) -> u64 {
    u64::from(id) * PART + u64::from(half) * RECORD as u64
}

/// The number and the contents of a record, if it is whole.
fn contents(record: &[u8]) -> Option<(u32, &[u8])> {
    let (head, rest) = record.split_first_chunk::<8>()?;
    let (sum, rest) = rest.split_first_chunk::<8>()?;
    let number = u32::from_ne_bytes(*head.first_chunk()?);
    let length = u32::from_ne_bytes(*head.last_chunk()?);
    let contents = rest.get(..usize::try_from(length).ok()?)?;
    let of_record = check_sum(&[head, contents].concat());
    let is_whole = number != 0 && of_record == u64::from_ne_bytes(*sum);
    is_whole.then_some((number, contents))
}

/// FNV-1a by eight bytes at a time. It has to tell a record that was half written, and nobody else writes
/// there.
fn check_sum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    let (words, rest) = bytes.as_chunks::<8>();
    let sum =
        words.iter().fold(0xcbf2_9ce4_8422_2325, |sum, word| step(sum, u64::from_ne_bytes(*word)));
    rest.iter().fold(sum, |sum, byte| step(sum, u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a successor finds of ids.
    fn found<const N: usize>(ledger: &Ledger, ids: [u32; N]) -> [Option<Vec<u8>>; N] {
        let left = Ledger::left(ledger.memory.try_clone().unwrap().into());
        ids.map(|id| left.last(id))
    }

    #[test]
    fn a_successor_finds_the_last_record_of_each_id() {
        let mut ledger = Ledger::new().unwrap();
        assert!(ledger.read().is_empty());
        for (id, contents) in [(7, "a"), (65_535, "b"), (7, "c"), (7, "dd"), (3, "e")] {
            ledger.put(id, contents.as_bytes()).unwrap();
        }
        ledger.erase(3);
        ledger.erase(4);
        let some = |text: &str| Some(text.as_bytes().to_vec());
        assert_eq!(found(&ledger, [7, 65_535, 3, 4]), [some("dd"), some("b"), None, None]);
        ledger.put(3, b"f").unwrap();
        assert_eq!(found(&ledger, [3]), [some("f")]);
    }

    #[test]
    fn a_successor_finds_the_last_answer_to_each_process() {
        let mut ledger = Ledger::new().unwrap();
        let answer = |pid, number, answer| KeptAnswer { pid, number, answer };
        let all = [
            answer(9, 1, Ok(vec![1; 500])),
            answer(8, 7, Err(libc::EINVAL)),
            answer(9, 2, Ok(Vec::new())),
            answer(7, 3, Ok(vec![7])),
        ];
        all.iter().for_each(|answer| ledger.write_answer(answer).unwrap());
        let found =
            |ledger: &Ledger| Ledger::left(ledger.memory.try_clone().unwrap().into()).answers();
        assert_eq!(found(&ledger), [&all[2..3], &all[1..2], &all[3..]].concat());
        ledger.erase_answer(8);
        assert_eq!(found(&ledger), all[2..]);
        let next = answer(6, 4, Ok(vec![0; 10]));
        ledger.write_answer(&next).unwrap();
        assert_eq!(found(&ledger), [all[2].clone(), next, all[3].clone()], "the free part");
        // Without the last answer, the command is executed again.
        assert!(ledger.write_answer(&answer(7, 5, Ok(vec![1; RECORD]))).is_err());
        assert_eq!(found(&ledger).len(), 2);
        assert!(ledger.read().is_empty());
    }

    #[test]
    fn a_record_that_was_half_written_leaves_the_one_before() {
        let mut ledger = Ledger::new().unwrap();
        let mut contents = [1; RECORD - HEADER];
        ledger.put(5, &contents).unwrap();
        let before = contents.to_vec();
        contents.fill(2);
        ledger.put(5, &contents).unwrap();
        for at in [0, 5, 9, HEADER, RECORD - 1] {
            let mut byte = [0];
            let at = place(5, 0) + at as u64;
            ledger.memory.read_exact_at(&mut byte, at).unwrap();
            ledger.memory.write_all_at(&[!byte[0]], at).unwrap();
            assert_eq!(found(&ledger, [5]), [Some(before.clone())], "byte {at}");
            ledger.memory.write_all_at(&byte, at).unwrap();
            assert_eq!(found(&ledger, [5]), [Some(contents.to_vec())]);
        }
    }

    #[test]
    fn what_is_too_long_is_refused_and_leaves_the_record_before() {
        let mut ledger = Ledger::new().unwrap();
        ledger.put(0, b"short").unwrap();
        assert!(ledger.put(0, &[0; RECORD - HEADER + 1]).is_err());
        assert_eq!(found(&ledger, [0]), [Some(b"short".to_vec())]);
    }
}
