//! Every model, under its rule's name.

use polypath_loom::models;

#[test]
fn a_deadline_is_never_slept_through() {
    models::a_deadline_is_never_slept_through();
}

#[test]
fn who_is_about_to_sleep_wakes_a_ticking_thread() {
    models::who_is_about_to_sleep_wakes_a_ticking_thread();
}

#[test]
fn no_packet_in_shared_memory_is_slept_through() {
    models::no_packet_in_shared_memory_is_slept_through();
}

#[test]
fn what_is_collected_is_never_slept_through() {
    models::what_is_collected_is_never_slept_through();
}

#[test]
fn nothing_touches_memory_after_deregistration() {
    models::nothing_touches_memory_after_deregistration();
}

#[test]
fn the_socket_is_never_left_alone() {
    models::the_socket_is_never_left_alone();
}

#[test]
fn who_stands_in_is_rung_for() {
    models::who_stands_in_is_rung_for();
}
