//! The exported symbols: each public function of libibverbs, with rdma-core's version.
//!
//! Each export is a few instructions of assembly with the symbol version. They save the argument
//! registers, ask [`crate::forward::route`] where the call must go, restore the registers and jump
//! there. So neither our function nor the real library's notices a difference, whatever its
//! signature (no function of libibverbs has more than six arguments, or floating-point ones).

use core::ptr::null_mut;
use core::sync::atomic::AtomicPtr;

use crate::forward::{
    Code, OwnerTest, Symbol, refuse_errno, refuse_minus_one, refuse_negative, refuse_null,
    refuse_silently, refuse_text, route,
};
use crate::{
    ah, buffer, channel, cq, cq_make, device, events, import, memory, open, pd, qp, qp_make, query,
    srq, strings,
};

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the symbol trampolines are written for x86-64 only");

/// The common part of all trampolines. The first argument is the caller's, and `r11` holds the
/// entry.
#[cfg_attr(test, allow(dead_code))]
#[unsafe(naked)]
unsafe extern "C" fn dispatch() {
    core::arch::naked_asm!(
        "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
        "mov rsi, r11",
        "call {route}",
        "mov r11, rax",
        "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
        "jmp r11",
        route = sym route,
    )
}

/// Exports `name` in node `version`; `default` is `@@` or `@`.
macro_rules! export {
    ($id:ident, $name:expr, $default:literal, $version:literal, $kind:ident, $ours:expr, $missing:path) => {
        mod $id {
            use super::*;
            // This is concatenated by hand, because C strings can't be made with concat!().
            #[cfg_attr(test, allow(dead_code))]
            static ENTRY: Symbol = Symbol {
                name: c_str(concat!($name, "\0")),
                version: c_str(concat!($version, "\0")),
                kind: OwnerTest::$kind,
                ours: Code($ours as *const core::ffi::c_void),
                missing: Code($missing as *const core::ffi::c_void),
                real: AtomicPtr::new(null_mut()),
            };
            // Symbol versions only make sense in the library itself.
            #[cfg(not(test))]
            core::arch::global_asm!(
                concat!(".pushsection .text.export.", stringify!($id), ",\"ax\",@progbits"),
                concat!(".globl __polypath_", stringify!($id)),
                concat!(".type __polypath_", stringify!($id), ",@function"),
                concat!(".symver __polypath_", stringify!($id), ", ", $name, $default, $version),
                concat!("__polypath_", stringify!($id), ":"),
                "endbr64",
                "lea r11, [rip + {entry}]",
                "jmp {dispatch}",
                concat!(".size __polypath_", stringify!($id), ", .-__polypath_", stringify!($id)),
                ".popsection",
                entry = sym ENTRY,
                dispatch = sym dispatch,
            );
        }
    };
}

/// Makes a C string from a literal that ends in NUL.
const fn c_str(text: &'static str) -> &'static core::ffi::CStr {
    match core::ffi::CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the names below have no NUL inside"),
    }
}

/// The current versions of functions that handle our objects.
macro_rules! own {
    ($($name:ident $version:literal $kind:ident $ours:path, $missing:path;)*) => {
        $( export!($name, stringify!($name), "@@", $version, $kind, $ours, $missing); )*
    };
}

/// Functions for objects that we never create. Ours refuse, and the real library handles the rest.
macro_rules! refused {
    ($($name:ident $version:literal $kind:ident $refuse:path;)*) => {
        $( export!($name, stringify!($name), "@@", $version, $kind, $refuse, $refuse); )*
    };
}

/// The API of libibverbs before 1.1, whose objects have other structures. Only the real library
/// handles it.
macro_rules! compat {
    ($($id:ident $name:ident $missing:path;)*) => {
        $( export!($id, stringify!($name), "@", "IBVERBS_1.0", Real, $missing, $missing); )*
    };
}

own! {
    ibv_get_device_list "IBVERBS_1.1" Ours device::get_device_list, refuse_null;
    ibv_free_device_list "IBVERBS_1.1" Ours device::free_device_list, refuse_silently;
    ibv_get_device_name "IBVERBS_1.1" Device device::get_device_name, refuse_null;
    ibv_get_device_index "IBVERBS_1.9" Device device::get_device_index, refuse_minus_one;
    ibv_get_device_guid "IBVERBS_1.1" Device device::get_device_guid, refuse_silently;
    ibv_open_device "IBVERBS_1.1" Device open::open_device, refuse_null;
    ibv_close_device "IBVERBS_1.1" Context open::close_device, refuse_minus_one;
    ibv_import_device "IBVERBS_1.10" Ours import::import_device, refuse_null;

    ibv_query_device "IBVERBS_1.1" Context query::query_device, refuse_errno;
    ibv_query_port "IBVERBS_1.1" Context query::query_port_compat, refuse_errno;
    ibv_query_port_speed "IBVERBS_1.16" Context query::query_port_speed, refuse_errno;
    ibv_query_gid "IBVERBS_1.1" Context query::query_gid, refuse_minus_one;
    ibv_query_pkey "IBVERBS_1.1" Context query::query_pkey, refuse_minus_one;
    ibv_get_pkey_index "IBVERBS_1.5" Context query::get_pkey_index, refuse_minus_one;
    _ibv_query_gid_ex "IBVERBS_1.11" Context query::query_gid_ex, refuse_errno;
    _ibv_query_gid_table "IBVERBS_1.11" Context query::query_gid_table, refuse_negative;

    ibv_alloc_pd "IBVERBS_1.1" Context pd::alloc_pd, refuse_null;
    ibv_dealloc_pd "IBVERBS_1.1" Object pd::dealloc_pd, refuse_errno;
    ibv_reg_mr "IBVERBS_1.1" Object memory::reg_mr, refuse_null;
    ibv_reg_mr_iova "IBVERBS_1.7" Object memory::reg_mr_iova, refuse_null;
    ibv_reg_mr_iova2 "IBVERBS_1.8" Object memory::reg_mr_iova2, refuse_null;
    ibv_rereg_mr "IBVERBS_1.1" Object memory::rereg_mr, refuse_minus_one;
    ibv_reg_dmabuf_mr "IBVERBS_1.12" Object memory::reg_dmabuf_mr, refuse_null;
    ibv_dereg_mr "IBVERBS_1.1" Object memory::dereg_mr, refuse_errno;
    ibv_import_pd "IBVERBS_1.10" Context import::import_pd, refuse_null;
    ibv_unimport_pd "IBVERBS_1.10" Object import::unimport_pd, refuse_silently;
    ibv_import_mr "IBVERBS_1.10" Object import::import_mr, refuse_null;
    ibv_unimport_mr "IBVERBS_1.10" Object import::unimport_mr, refuse_silently;
    ibv_import_dm "IBVERBS_1.13" Context import::import_dm, refuse_null;
    ibv_unimport_dm "IBVERBS_1.13" Object import::unimport_dm, refuse_silently;
    ibv_reg_mr_ex "IBVERBS_1.15" Object buffer::reg_mr_ex, refuse_null;
    ibv_alloc_buf "IBVERBS_1.17" Object buffer::alloc_buf, refuse_null;
    ibv_reg_buf_mr "IBVERBS_1.17" Object buffer::reg_buf_mr, refuse_null;
    ibv_free_buf "IBVERBS_1.17" Ours buffer::free_buf, refuse_silently;
    ibv_export_buf_dmabuf_fd "IBVERBS_1.18" Ours buffer::export_buf_dmabuf_fd, refuse_minus_one;

    ibv_create_comp_channel "IBVERBS_1.0" Context channel::create_comp_channel, refuse_null;
    ibv_destroy_comp_channel "IBVERBS_1.0" Object channel::destroy_comp_channel, refuse_errno;
    ibv_get_cq_event "IBVERBS_1.1" Object events::get_cq_event, refuse_minus_one;
    ibv_ack_cq_events "IBVERBS_1.1" Object events::ack_cq_events, refuse_silently;
    ibv_create_cq "IBVERBS_1.1" Context cq_make::create_cq, refuse_null;
    ibv_resize_cq "IBVERBS_1.1" Object cq::resize_cq, refuse_errno;
    ibv_destroy_cq "IBVERBS_1.1" Object cq::destroy_cq, refuse_errno;

    ibv_create_srq "IBVERBS_1.1" Object srq::create_srq, refuse_null;
    ibv_modify_srq "IBVERBS_1.1" Object srq::modify_srq, refuse_errno;
    ibv_query_srq "IBVERBS_1.1" Object srq::query_srq, refuse_errno;
    ibv_destroy_srq "IBVERBS_1.1" Object srq::destroy_srq, refuse_errno;

    ibv_create_qp "IBVERBS_1.1" Object qp_make::create_qp, refuse_null;
    ibv_modify_qp "IBVERBS_1.1" Object qp::modify_qp, refuse_errno;
    ibv_query_qp "IBVERBS_1.1" Object qp::query_qp, refuse_errno;
    ibv_destroy_qp "IBVERBS_1.1" Object qp::destroy_qp, refuse_errno;
    ibv_qp_to_qp_ex "IBVERBS_1.6" Object qp::qp_to_qp_ex, refuse_null;
    ibv_query_qp_data_in_order "IBVERBS_1.14" Object qp::query_qp_data_in_order, refuse_silently;
    ibv_query_ece "IBVERBS_1.10" Object qp::query_ece, refuse_errno;
    ibv_set_ece "IBVERBS_1.10" Object qp::set_ece, refuse_errno;
    ibv_attach_mcast "IBVERBS_1.1" Object qp::attach_mcast, refuse_errno;
    ibv_detach_mcast "IBVERBS_1.1" Object qp::detach_mcast, refuse_errno;

    ibv_create_ah "IBVERBS_1.1" Object ah::create_ah, refuse_null;
    ibv_destroy_ah "IBVERBS_1.1" Object ah::destroy_ah, refuse_errno;
    ibv_create_ah_from_wc "IBVERBS_1.1" Object ah::create_ah_from_wc, refuse_null;
    ibv_init_ah_from_wc "IBVERBS_1.1" Context ah::init_ah_from_wc, refuse_minus_one;

    ibv_get_async_event "IBVERBS_1.1" Context events::get_async_event, refuse_minus_one;
    ibv_ack_async_event "IBVERBS_1.1" Ours events::ack_async_event, refuse_silently;

    ibv_fork_init "IBVERBS_1.1" Ours strings::fork_init, refuse_errno;
    ibv_is_fork_initialized "IBVERBS_1.13" Ours strings::is_fork_initialized, refuse_silently;
    ibv_node_type_str "IBVERBS_1.1" Ours strings::node_type_str, refuse_text;
    ibv_port_state_str "IBVERBS_1.1" Ours strings::port_state_str, refuse_text;
    ibv_event_type_str "IBVERBS_1.1" Ours strings::event_type_str, refuse_text;
    ibv_wc_status_str "IBVERBS_1.1" Ours strings::wc_status_str, refuse_text;
    ibv_rate_to_mult "IBVERBS_1.0" Ours strings::rate_to_mult, refuse_minus_one;
    mult_to_ibv_rate "IBVERBS_1.0" Ours strings::mult_to_rate, refuse_silently;
    ibv_rate_to_mbps "IBVERBS_1.1" Ours strings::rate_to_mbps, refuse_minus_one;
    mbps_to_ibv_rate "IBVERBS_1.1" Ours strings::mbps_to_rate, refuse_silently;
}

refused! {
    ibv_resolve_eth_l2_from_gid "IBVERBS_1.1" Context refuse_minus_one;
    ibv_alloc_dmah "IBVERBS_1.15" Context refuse_null;
    ibv_dealloc_dmah "IBVERBS_1.15" Object refuse_errno;
    ibv_dm_export_dmabuf_fd "IBVERBS_1.16" Object refuse_minus_one;
    _ibv_query_comp_cntr_caps "IBVERBS_1.18" Context refuse_errno;
    ibv_create_comp_cntr "IBVERBS_1.18" Context refuse_null;
    ibv_destroy_comp_cntr "IBVERBS_1.18" Object refuse_errno;
    ibv_set_comp_cntr "IBVERBS_1.18" Object refuse_errno;
    ibv_set_err_comp_cntr "IBVERBS_1.18" Object refuse_errno;
    ibv_inc_comp_cntr "IBVERBS_1.18" Object refuse_errno;
    ibv_inc_err_comp_cntr "IBVERBS_1.18" Object refuse_errno;
    ibv_read_comp_cntr "IBVERBS_1.18" Object refuse_errno;
    ibv_read_err_comp_cntr "IBVERBS_1.18" Object refuse_errno;
    ibv_qp_attach_comp_cntr "IBVERBS_1.18" Object refuse_errno;

    // Helpers without objects, which only the real library has.
    ibv_register_driver "IBVERBS_1.1" Real refuse_silently;
    ibv_dontfork_range "IBVERBS_1.1" Real refuse_silently;
    ibv_dofork_range "IBVERBS_1.1" Real refuse_silently;
    ibv_copy_ah_attr_from_kern "IBVERBS_1.1" Real refuse_silently;
    ibv_copy_path_rec_from_kern "IBVERBS_1.0" Real refuse_silently;
    ibv_copy_path_rec_to_kern "IBVERBS_1.0" Real refuse_silently;
    ibv_copy_qp_attr_from_kern "IBVERBS_1.0" Real refuse_silently;
    ibv_get_sysfs_path "IBVERBS_1.0" Real refuse_text;
    ibv_read_sysfs_file "IBVERBS_1.0" Real refuse_minus_one;
}

export!(
    gid_type_34,
    "ibv_query_gid_type",
    "@",
    "IBVERBS_PRIVATE_34",
    Context,
    query::query_gid_type,
    refuse_minus_one
);
export!(
    gid_type_57,
    "ibv_query_gid_type",
    "@",
    "IBVERBS_PRIVATE_57",
    Context,
    query::query_gid_type,
    refuse_minus_one
);
export!(
    gid_type_59,
    "ibv_query_gid_type",
    "@",
    "IBVERBS_PRIVATE_59",
    Context,
    query::query_gid_type,
    refuse_minus_one
);
export!(
    gid_type_64,
    "ibv_query_gid_type",
    "@",
    "IBVERBS_PRIVATE_64",
    Context,
    query::query_gid_type,
    refuse_minus_one
);
export!(
    gid_type_65,
    "ibv_query_gid_type",
    "@@",
    "IBVERBS_PRIVATE_65",
    Context,
    query::query_gid_type,
    refuse_minus_one
);

compat! {
    c_ack_async_event ibv_ack_async_event refuse_silently;
    c_ack_cq_events ibv_ack_cq_events refuse_silently;
    c_alloc_pd ibv_alloc_pd refuse_null;
    c_attach_mcast ibv_attach_mcast refuse_errno;
    c_close_device ibv_close_device refuse_errno;
    c_create_ah ibv_create_ah refuse_null;
    c_create_cq ibv_create_cq refuse_null;
    c_create_qp ibv_create_qp refuse_null;
    c_create_srq ibv_create_srq refuse_null;
    c_dealloc_pd ibv_dealloc_pd refuse_errno;
    c_dereg_mr ibv_dereg_mr refuse_errno;
    c_destroy_ah ibv_destroy_ah refuse_errno;
    c_destroy_cq ibv_destroy_cq refuse_errno;
    c_destroy_qp ibv_destroy_qp refuse_errno;
    c_destroy_srq ibv_destroy_srq refuse_errno;
    c_detach_mcast ibv_detach_mcast refuse_errno;
    c_free_device_list ibv_free_device_list refuse_silently;
    c_get_async_event ibv_get_async_event refuse_minus_one;
    c_get_cq_event ibv_get_cq_event refuse_minus_one;
    c_get_device_guid ibv_get_device_guid refuse_silently;
    c_get_device_list ibv_get_device_list refuse_null;
    c_get_device_name ibv_get_device_name refuse_text;
    c_modify_qp ibv_modify_qp refuse_errno;
    c_modify_srq ibv_modify_srq refuse_errno;
    c_open_device ibv_open_device refuse_null;
    c_query_device ibv_query_device refuse_errno;
    c_query_gid ibv_query_gid refuse_minus_one;
    c_query_pkey ibv_query_pkey refuse_minus_one;
    c_query_port ibv_query_port refuse_errno;
    c_query_qp ibv_query_qp refuse_errno;
    c_query_srq ibv_query_srq refuse_errno;
    c_reg_mr ibv_reg_mr refuse_null;
    c_resize_cq ibv_resize_cq refuse_errno;
}
