use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

use super::*;
use crate::lane::deeds::BUSY_POLLS;
use crate::lane::watch::{LOOK_MAX, WATCH_GROWTH, WATCH_MAX, WATCH_MIN};

/// Longer than any test waits.
const FOR_EVER: Duration = Duration::from_secs(3600);

/// A sleeper that waits for a socket, and the socket's other end.
fn beside_a_socket() -> (Sleeper, Watch, UnixDatagram, UnixDatagram) {
    let (socket, sender) = UnixDatagram::pair().unwrap();
    (Sleeper::new(None).unwrap(), Watch::new(Duration::ZERO), socket, sender)
}

#[test]
fn a_program_that_posts_very_much_after_each_poll_is_left_alone() {
    let (sleeper, mut watch, socket, sender) = beside_a_socket();
    let fd = socket.as_raw_fd();
    let before = sleeper.deeds();
    sender.send(b"a packet").unwrap();
    sleeper.took();
    (0..BUSY_POLLS).for_each(|_| sleeper.entered());
    // The packet would wake the thread if it waited for the socket.
    watch.tick = Duration::from_millis(1);
    let woken = sleeper.sleep(fd, clock::now(), None, &mut watch, false);
    assert_eq!(woken, Woken::Unpolled, "a tick later, nobody is there any more");
    socket.recv(&mut [0; 16]).unwrap();
    assert_eq!(sleeper.ticked(fd, before, false, &mut watch), Woken::Nothing);
}

#[test]
fn what_is_collected_is_sent_by_the_thread_when_its_time_is_over() {
    let (sleeper, mut watch, socket, _sender) = beside_a_socket();
    let fd = socket.as_raw_fd();
    let rest = |watch: &mut Watch| sleeper.rest(Some(fd), clock::now(), FOR_EVER, watch);
    sleeper.collected(clock::now());
    assert!(sleeper.is_collecting());
    // Either the wake-up ended it, or the time was over before the thread checked.
    assert_ne!(rest(&mut watch), Rest::Over);
    sleeper.waker.clear();
    // From now on the thread checks by itself.
    sleeper.sent();
    sleeper.collected(clock::now());
    assert!(!sleeper.waker.wait(None, Duration::ZERO), "not woken");
    assert_eq!(rest(&mut watch), Rest::Overdue);
    // It also does so while the application polls busily.
    sleeper.sent();
    sleeper.collected(clock::now());
    (0..BUSY_POLLS).for_each(|_| sleeper.polled());
    watch.tick = FOR_EVER;
    assert_eq!(sleeper.sleep(fd, clock::now(), None, &mut watch, false), Woken::Drive);
    sleeper.sent();
    assert!(!sleeper.is_collecting());
}

#[test]
fn a_thread_that_looks_in_vain_stops_to_look_and_is_woken_again() {
    let sleeper = Sleeper::new(None).unwrap();
    let mut watch = Watch::new(Duration::ZERO);
    let second = Duration::from_secs(1);
    assert_eq!(sleeper.next_look(second, &mut watch), None);
    sleeper.collected(second);
    assert!(sleeper.waker.wait(None, Duration::ZERO), "woken");
    sleeper.waker.clear();
    assert_eq!(sleeper.next_look(second, &mut watch), Some(second + COLLECT_MAX));
    sleeper.sent();
    for _ in 0..VAIN_LOOKS {
        assert_eq!(sleeper.next_look(second, &mut watch), Some(second + COLLECT_MAX));
    }
    sleeper.collected(second);
    assert!(!sleeper.waker.wait(None, Duration::ZERO), "it would have looked once more");
    sleeper.sent();
    for _ in 0..=VAIN_LOOKS {
        assert!(sleeper.next_look(second, &mut watch).is_some());
    }
    assert_eq!(sleeper.next_look(second, &mut watch), None);
    sleeper.collected(second);
    assert!(sleeper.waker.wait(None, Duration::ZERO), "woken");
}

#[test]
fn a_program_whose_posts_are_collected_is_left_alone_while_it_polls_at_all() {
    let (sleeper, mut watch, socket, sender) = beside_a_socket();
    let fd = socket.as_raw_fd();
    sender.send(b"a packet").unwrap();
    sleeper.collected(clock::now());
    sleeper.sent();
    assert_eq!(sleeper.sleep(fd, clock::now(), None, &mut watch, false), Woken::Drive);
    sleeper.polled();
    // There was one poll, and none since. Whoever waits for the packet must not wait for a
    // tick.
    watch.tick = FOR_EVER;
    assert_eq!(sleeper.sleep(fd, clock::now(), None, &mut watch, false), Woken::Drive);
}

#[test]
fn a_thread_that_watches_sleeps_on_while_a_thread_that_polls_is_in_the_lane() {
    let (sleeper, mut watch, socket, sender) = beside_a_socket();
    let fd = socket.as_raw_fd();
    let begun = clock::now();
    watch.watch_socket(begun);
    sleeper.polled();
    let deadline = begun + Duration::from_millis(2);
    let woken = sleeper.sleep(fd, begun, Some(deadline), &mut watch, true);
    assert_eq!((woken, clock::now() >= deadline), (Woken::Drive, true), "nothing has come");
    // What that thread leaves in the socket is this one's.
    sender.send(b"a packet").unwrap();
    sleeper.polled();
    let far = Some(begun + FOR_EVER);
    assert_eq!(sleeper.sleep(fd, clock::now(), far, &mut watch, true), Woken::Drive);
}

#[test]
fn packets_that_nobody_takes_make_the_thread_watch_the_socket_until_somebody_does() {
    let (sleeper, mut watch, socket, sender) = beside_a_socket();
    let fd = socket.as_raw_fd();
    let second = Duration::from_secs(1);
    (0..BUSY_POLLS).for_each(|_| sleeper.polled());
    let none = Deeds::default();
    assert_eq!(sleeper.ticked(fd, none, false, &mut watch), Woken::Nothing, "there are no packets");
    sender.send(b"a packet").unwrap();
    assert_eq!(sleeper.ticked(fd, none, false, &mut watch), Woken::Unpolled);
    watch.watch_socket(second);
    assert_eq!(watch.watches_until, second + WATCH_MIN);
    // Now the packet alone wakes it, even if the application polls.
    assert_eq!(sleeper.sleep(fd, second, None, &mut watch, false), Woken::Drive);
    // Packets are left unpolled again after that, so it watches longer.
    assert_eq!(sleeper.ticked(fd, none, false, &mut watch), Woken::Unpolled);
    watch.watch_socket(second * 2);
    assert_eq!(watch.watches_until, second * 2 + WATCH_MIN * WATCH_GROWTH);
    socket.recv(&mut [0; 16]).unwrap();
    assert_eq!(sleeper.ticked(fd, none, false, &mut watch), Woken::Nothing, "somebody took it");
    assert_eq!(watch.watch_for, WATCH_MAX / 2);
    for _ in 0..8 {
        assert_eq!(sleeper.ticked(fd, none, false, &mut watch), Woken::Nothing);
    }
    assert_eq!(watch.watch_for, WATCH_MIN);
    // The application polls rarely. The thread does the work, and does not watch the socket for
    // it.
    let most = Deeds { looks: BUSY_POLLS - 1, all: BUSY_POLLS - 1 };
    assert_eq!(sleeper.ticked(fd, most, false, &mut watch), Woken::Drive);
}

#[test]
fn a_program_that_polls_on_is_looked_at_more_seldom_until_it_stops() {
    let (sleeper, mut watch) = (Sleeper::new(None).unwrap(), Watch::new(Duration::ZERO));
    sleeper.collected(clock::now());
    sleeper.waker.clear();
    sleeper.sent();
    let look = |watch: &mut Watch| {
        let now = clock::now();
        sleeper.next_look(now, watch).map(|at| at - now)
    };
    assert_eq!(look(&mut watch), Some(COLLECT_MAX));
    watch.looked(true);
    assert_eq!(look(&mut watch), Some(COLLECT_MAX * 2));
    (0..10).for_each(|_| watch.looked(true));
    assert_eq!(look(&mut watch), Some(LOOK_MAX));
    // Nobody polls while the thread rests.
    assert_eq!(sleeper.rest(None, clock::now(), LOOK_MAX * 2, &mut watch), Rest::Over);
    assert!(watch.look < LOOK_MAX);
    // What waits when it looks has its time all the same.
    (0..10).for_each(|_| watch.looked(true));
    let now = clock::now();
    sleeper.collected(now);
    assert_eq!(sleeper.next_look(now, &mut watch), Some(now + COLLECT_MAX));
    assert_eq!(sleeper.rest(None, now, FOR_EVER, &mut watch), Rest::Overdue);
    sleeper.sent();
    assert_eq!(look(&mut watch), Some(LOOK_MAX / 2), "nobody had sent them");
    (0..10).for_each(|_| watch.looked(false));
    assert_eq!(look(&mut watch), Some(COLLECT_MAX));
}
