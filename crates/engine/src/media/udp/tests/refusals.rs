//! Tests of what a flow remembers of sends that the kernel rejected.

use super::*;

#[test]
fn segmentation_is_tried_again_after_interfaces_have_changed() {
    let (_receiver, mut sender) = pair();
    let flow = sender.open(key(V4, V4)).unwrap();
    let data = bytes(14 * 1024, 1);
    let segments = [segment(&data)];
    let payload = Payload::Memory { segments: &segments, skip: 0, len: data.len() as u32 };
    let message = write(0, 1024, payload);
    let mut refuse = |forgets: bool| {
        if forgets {
            sender.forget_refusals();
        }
        sender.queue(flow, &message.burst()).unwrap();
        sender.refuse_queued(libc::EIO)
    };
    let segmented = refuse(false);
    assert!(segmented < 14, "{segmented}");
    assert_eq!(refuse(false), 14, "one by one");
    assert_eq!(refuse(true), segmented);
}
