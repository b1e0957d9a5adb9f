//! Which program a process executes.

/// A number that a process has until it executes another program, whichever of its libraries asks: made of addresses that the kernel
/// chooses anew each time (getauxval(3)). Where it does not, two programs may have the same.
pub fn image() -> u64 {
    let of = [libc::AT_RANDOM, libc::AT_SYSINFO_EHDR, libc::AT_ENTRY, libc::AT_PHDR, libc::AT_EXECFN];
    of.into_iter().fold(0, |sum, which| {
        // SAFETY: it only looks a number up.
        let address = unsafe { libc::getauxval(which) };
        (sum ^ address).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_the_same_each_time() {
        assert_eq!(image(), image());
        assert_ne!(image(), 0);
    }
}
