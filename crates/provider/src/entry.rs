//! `fi_prov_ini`, the one symbol that libfabric looks for.
//!
//! The function must know which core calls it, to find that core's functions, and in C only the return address tells.
//! So the symbol is a few instructions that hand that to [`ini`]. This assumes that the core calls the symbol directly,
//! as `ofi_reg_dl_prov` does in every version, so that the return address lies in the core's code. Where it does not,
//! and on architectures without such instructions here, the core is found by its file name.

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

/// Gives a provider structure for the core whose code contains `caller`. The core holds its lock: of its functions, only
/// the one that declares parameters may be called here.
extern "C" fn ini(caller: *const c_void) -> *mut fi_provider {
    let made = std::panic::catch_unwind(|| {
        isthmus_cabi::keep_quiet();
        core::stay();
        core::register(caller)
    });
    made.unwrap_or(std::ptr::null_mut())
}
