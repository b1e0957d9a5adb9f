//! `fi_prov_ini`, the one symbol that libfabric looks for.
//!
//! The function must know who calls it, to find that core's functions, and C tells by nothing but the return address.
//! So the symbol is a few instructions that pass it on. What is assumed: the core calls the symbol directly, as
//! `ofi_reg_dl_prov` does in every version, so that the return address lies inside the core's code. Where that does not
//! hold the core is looked for by its file name, as on architectures without a stub here.

use std::ffi::c_void;

use isthmus_fabric_sys::fi_provider;

use crate::core;

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn fi_prov_ini() -> *mut fi_provider {
    // At entry the stack's top is the return address; a tail jump keeps it there.
    std::arch::naked_asm!("mov rdi, [rsp]", "jmp {ini}", ini = sym ini)
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn fi_prov_ini() -> *mut fi_provider {
    // The link register is the return address; a tail branch keeps it.
    std::arch::naked_asm!("mov x0, x30", "b {ini}", ini = sym ini)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[unsafe(no_mangle)]
extern "C" fn fi_prov_ini() -> *mut fi_provider {
    ini(std::ptr::null())
}

/// Gives a provider structure for the core that calls from `caller`. The core holds its lock: nothing of it may be
/// called here but what declares parameters.
extern "C" fn ini(caller: *const c_void) -> *mut fi_provider {
    let made = std::panic::catch_unwind(|| {
        isthmus_cabi::keep_quiet();
        core::stay();
        core::register(caller)
    });
    made.unwrap_or(std::ptr::null_mut())
}
