//! The models.

use std::time::Duration;

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use polypath_transport::{Access, Sge};

use crate::lane::sleeper::{Sleeper, Woken};
use crate::lane::waker::{FOR_EVER, Waker};
use crate::lane::watch::Watch;
use crate::media::local::Exchange;
use crate::memory::{KeyCache, MemoryTable};

/// A deadline that comes while the lane's thread falls asleep is not slept through: `Lane::run` and
/// `Lane::enter`, reduced to what they do with the sleeper. `Sleeper::deadline` is called with the
/// lane's lock held, and that its loads are relaxed rests on it.
pub fn a_deadline_is_never_slept_through() {
    loom::model(|| {
        let sleeper = Arc::new(Sleeper::new(None).unwrap());
        let lane = Arc::new(Mutex::new(None));
        let (their_sleeper, their_lane) = (sleeper.clone(), lane.clone());
        let poster = thread::spawn(move || {
            let mut state = their_lane.lock().unwrap();
            let at = Duration::from_millis(5);
            *state = Some(at);
            their_sleeper.deadline(at);
        });
        let (mut watch, mut deadline) = (Watch::new(Duration::ZERO), None);
        // Asleep for ever without being woken is a deadlock, which the checker reports.
        while deadline.is_none() {
            sleeper.sleep(-1, Duration::ZERO, deadline, &mut watch, false);
            deadline = *lane.lock().unwrap();
        }
        poster.join().unwrap();
    });
}

/// While the application polls busily the lane's thread only ticks; an application that is about to
/// sleep ends that at once.
pub fn who_is_about_to_sleep_wakes_a_ticking_thread() {
    loom::model(|| {
        crate::lane::waker::be_patient();
        let sleeper = Sleeper::new(None).unwrap();
        (0..64).for_each(|_| sleeper.polled());
        let sleeper = Arc::new(sleeper);
        let theirs = sleeper.clone();
        let application = thread::spawn(move || theirs.needed());
        let mut watch = Watch::new(Duration::ZERO);
        // A tick without its end: only the application's wake-up ends it.
        let woken = sleeper.sleep(-1, Duration::ZERO, Some(Duration::ZERO), &mut watch, false);
        assert_eq!(woken, Woken::Drive);
        application.join().unwrap();
    });
}

/// The lane's thread does not sleep beside the socket when a thread that stood in for it has stepped back:
/// `Lane::run` and `Lane::step_in`, reduced to what they do with the sleeper.
pub fn the_socket_is_never_left_alone() {
    let mut model = loom::model::Builder::new();
    // All orders would take minutes.
    model.preemption_bound = Some(3);
    model.check(|| {
        let sleeper = Arc::new(Sleeper::new(None).unwrap());
        let steps_back = Arc::new(Mutex::new(false));
        let (theirs, their_end) = (sleeper.clone(), steps_back.clone());
        let application = thread::spawn(move || {
            assert!(theirs.step_in());
            *their_end.lock().unwrap() = true;
            theirs.step_back();
        });
        let mut watch = Watch::new(Duration::ZERO);
        // Asleep for ever without being woken is a deadlock, which the checker reports.
        let mut now = Duration::ZERO;
        while !*steps_back.lock().unwrap() {
            // So long after the last look, the thread does not tick, because it expects nobody.
            now += Duration::from_millis(5);
            sleeper.sleep(-1, now, None, &mut watch, false);
        }
        application.join().unwrap();
    });
}

/// A packet that is written into shared memory while its reader falls asleep is not slept through: the
/// bell of the reader is rung, or it does not sleep.
pub fn no_packet_in_shared_memory_is_slept_through() {
    loom::model(|| {
        let bell = Arc::new(Waker::new().unwrap());
        let memory = Arc::new(Exchange::new(bell.clone()));
        let writer = memory.clone();
        let writer = thread::spawn(move || writer.write());
        // Asleep for ever without being rung for is a deadlock, which the checker reports.
        while !memory.has_more() {
            if memory.arm() {
                bell.wait(Some(-1), FOR_EVER);
            }
            memory.disarm();
            bell.clear();
        }
        writer.join().unwrap();
    });
}

/// Who stands in for the lane's thread and sleeps is rung for, although the lane's thread wakes up beside it:
/// `Lane::run` and `Lane::attend`, reduced to what they do with shared memory.
pub fn who_stands_in_is_rung_for() {
    let mut model = loom::model::Builder::new();
    // All orders would take minutes.
    model.preemption_bound = Some(3);
    model.check(|| {
        let bell = Arc::new(Waker::new().unwrap());
        let memory = std::sync::Arc::new(Exchange::new(bell.clone()));
        let sleeper = Arc::new(Sleeper::new(Some(memory.clone())).unwrap());
        let lane = Arc::new(Mutex::new(()));
        let writer = memory.clone();
        let writer = thread::spawn(move || writer.write());
        let (theirs, their_lane) = (sleeper.clone(), lane.clone());
        let of_lane = thread::spawn(move || {
            let mut watch = Watch::new(Duration::ZERO);
            // It slept before anybody stood in.
            watch.armed = true;
            let _state = their_lane.lock().unwrap();
            theirs.is_awake(&mut watch);
        });
        assert!(sleeper.step_in());
        // Asleep for ever without being rung for is a deadlock, which the checker reports.
        loop {
            {
                let _state = lane.lock().unwrap();
                sleeper.stand_in_is_awake();
                if memory.has_more() {
                    break;
                }
            }
            if sleeper.arm() {
                bell.wait(Some(-1), FOR_EVER);
                bell.clear();
            }
        }
        sleeper.step_back();
        writer.join().unwrap();
        of_lane.join().unwrap();
    });
}

/// What is collected while the lane's thread stops to look for it is not slept through: `Lane::run` and
/// `Lane::post`, reduced to what they do with the sleeper.
pub fn what_is_collected_is_never_slept_through() {
    loom::model(|| {
        let sleeper = Arc::new(Sleeper::new(None).unwrap());
        let lane = Arc::new(Mutex::new(false));
        let (their_sleeper, their_lane) = (sleeper.clone(), lane.clone());
        let poster = thread::spawn(move || {
            let mut collects = their_lane.lock().unwrap();
            *collects = true;
            their_sleeper.collected(Duration::ZERO);
        });
        let mut watch = Watch::new(Duration::ZERO);
        // Asleep for ever without being woken is a deadlock, which the checker reports.
        loop {
            sleeper.sleep(-1, Duration::ZERO, None, &mut watch, false);
            if *lane.lock().unwrap() {
                break;
            }
        }
        poster.join().unwrap();
    });
}

const PD: u32 = 1;

/// When deregistration has returned, no lane touches the memory, through its cache of keys or without.
pub fn nothing_touches_memory_after_deregistration() {
    loom::model(|| {
        let memory = Box::leak(Box::new([0u64; 8]));
        let table = Arc::new(MemoryTable::new());
        let addr = memory.as_ptr() as usize;
        let region = table.register(PD, addr, 64, addr as u64, Access::LOCAL_WRITE).unwrap();
        let key = region.key();
        let gone = Arc::new(AtomicBool::new(false));
        let cache = KeyCache::new();
        let sge = Sge { addr: addr as u64, len: 8, lkey: key };
        // It is in the cache already.
        cache.resolve(&table, PD, sge, Access::LOCAL_WRITE).unwrap();
        let lane = Arc::new(Mutex::new(cache));
        let (their_table, their_lane, their_gone) = (table.clone(), lane.clone(), gone.clone());
        let worker = thread::spawn(move || {
            for _ in 0..2 {
                let cache = their_lane.lock().unwrap();
                if cache.resolve(&their_table, PD, sge, Access::LOCAL_WRITE).is_ok() {
                    // The access itself.
                    assert!(
                        !their_gone.load(Ordering::Relaxed),
                        "the memory is the program's again"
                    );
                }
            }
        });
        table.deregister(key, || drop(lane.lock().unwrap())).unwrap();
        gone.store(true, Ordering::Relaxed);
        worker.join().unwrap();
        let cache = lane.lock().unwrap();
        assert!(cache.resolve(&table, PD, sge, Access::LOCAL_WRITE).is_err());
    });
}
