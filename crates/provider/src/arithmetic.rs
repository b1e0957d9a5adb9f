//! What atomic operations do to the elements of registered memory, at the target.
//!
//! **Discipline.** Each element is changed atomically. Elements of 1, 2, 4 or 8 bytes at their natural alignment are
//! changed with the processor's compare-and-exchange, so the program's atomic instructions, and other endpoints and
//! domains of the process, may change them at the same time. All others (complex numbers of 16 bytes, long doubles,
//! misaligned elements) are changed under one lock of the process, which the program cannot take: it must not change
//! those itself while initiators may. Several elements of one call are not changed together.
//!
//! The memory is the program's, and no cell of `lockfree`, so the atomic accesses are written here. They are sequentially
//! consistent: libfabric promises an order of atomics between a pair of endpoints, and nothing here is so fast that a
//! weaker one would show.

#![allow(clippy::disallowed_types)] // the program's memory, in words of the sizes that it chose

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use isthmus_fabric_sys::*;
use isthmus_region::local::LocalBuf;
use isthmus_transport::types::RemoteAtomic;
use isthmus_transport::{AtomicKind, Status};

/// Most operand bytes of one operation; every endpoint's transport takes as many.
pub(crate) const MOST_BYTES: usize = 2048;
/// Bytes of the largest element that the processor changes at once.
pub(crate) const WORD_BYTES: u64 = 8;
/// Bytes of the largest element.
const LARGEST: usize = 32;

type Raw = [u8; LARGEST];

/// Whether the processor's atomic instructions are atomic for other virtual machines, too.
///
/// Not in an emulator that runs a machine of one processor without leave to add another: QEMU's TCG then leaves the locked
/// instructions out, unless it was given `maxcpus` of at least 2.
pub(crate) fn is_shared() -> bool {
    static SHARED: OnceLock<bool> = OnceLock::new();
    *SHARED.get_or_init(|| {
        let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible");
        !(is_emulated() && possible.is_ok_and(|all| all.trim() == "0"))
    })
}

#[cfg(target_arch = "x86_64")]
fn is_emulated() -> bool {
    use std::arch::x86_64::__cpuid;
    const HYPERVISOR: u32 = 1 << 31;
    // Leaf 1 exists in every processor of this architecture; the emulator's where leaf 1 says that there is a hypervisor.
    let emulator = || {
        let leaf = __cpuid(0x4000_0000);
        [leaf.ebx, leaf.ecx, leaf.edx].map(u32::to_le_bytes).concat() == b"TCGTCGTCGTCG"
    };
    __cpuid(1).ecx & HYPERVISOR != 0 && emulator()
}

#[cfg(not(target_arch = "x86_64"))]
fn is_emulated() -> bool {
    // No instruction tells; a machine of one processor is taken for an emulated one.
    true
}

/// Bytes of an element, for the datatypes that libfabric has had from the start.
pub(crate) fn size(datatype: u32) -> Option<usize> {
    Some(match datatype {
        FI_INT8 | FI_UINT8 => 1,
        FI_INT16 | FI_UINT16 => 2,
        FI_INT32 | FI_UINT32 | FI_FLOAT => 4,
        FI_INT64 | FI_UINT64 | FI_DOUBLE | FI_FLOAT_COMPLEX => 8,
        FI_DOUBLE_COMPLEX | FI_LONG_DOUBLE => 16,
        FI_LONG_DOUBLE_COMPLEX => 32,
        _ => return None,
    })
}

/// Bytes of an element, if this operation is supported for it in a call of this kind.
pub(crate) fn valid(datatype: u32, op: u32, kind: AtomicKind) -> Option<usize> {
    let size = size(datatype)?;
    let kinds = match op {
        FI_MIN..=FI_BXOR | FI_ATOMIC_WRITE => kind != AtomicKind::Compare,
        FI_ATOMIC_READ => kind == AtomicKind::Fetch,
        FI_CSWAP..=FI_MSWAP => kind == AtomicKind::Compare,
        _ => false,
    };
    let ops = match datatype {
        FI_INT8..=FI_UINT64 => true,
        FI_FLOAT | FI_DOUBLE => !matches!(op, FI_BOR | FI_BAND | FI_BXOR | FI_MSWAP),
        FI_FLOAT_COMPLEX | FI_DOUBLE_COMPLEX => matches!(
            op,
            FI_SUM
                | FI_PROD
                | FI_LOR
                | FI_LAND
                | FI_LXOR
                | FI_ATOMIC_READ
                | FI_ATOMIC_WRITE
                | FI_CSWAP
                | FI_CSWAP_NE
        ),
        // Rust has no such numbers; they can only be read and written.
        _ => matches!(op, FI_ATOMIC_READ | FI_ATOMIC_WRITE),
    };
    (kinds && ops).then_some(size)
}

/// Does an operation on `target`, and gives the elements' former values to `before` if there are results.
///
/// # Errors
/// [`Status::Unsupported`] for an operation that is not supported, or lengths that do not fit each other: an initiator may
/// send anything.
pub(crate) fn apply(target: LocalBuf, what: &RemoteAtomic<'_>, before: &mut Vec<u8>) -> Result<(), Status> {
    let (datatype, op) = (u32::from(what.datatype), u32::from(what.op));
    let size = valid(datatype, op, what.kind).ok_or(Status::Unsupported)?;
    let count = usize::try_from(what.count).map_err(|_| Status::Unsupported)?;
    let bytes = count.checked_mul(size).ok_or(Status::Unsupported)?;
    let operands = if op == FI_ATOMIC_READ { 0 } else { bytes };
    let compares = if what.kind == AtomicKind::Compare { bytes } else { 0 };
    // A read may come with operands, which are ignored.
    let operand_fits = what.operand.len() == operands || op == FI_ATOMIC_READ;
    if target.len() != bytes || !operand_fits || what.compare.len() != compares {
        return Err(Status::Unsupported);
    }
    for i in 0..count {
        let at = i * size;
        let operand = raw(what.operand.get(at..at + size));
        let compare = raw(what.compare.get(at..at + size));
        let old = exchange(target.part(at, size), |old| step(datatype, op, old, &operand, &compare));
        if what.kind != AtomicKind::Plain {
            before.extend_from_slice(&old[..size]);
        }
    }
    Ok(())
}

fn raw(bytes: Option<&[u8]>) -> Raw {
    let mut raw = [0; LARGEST];
    if let Some(bytes) = bytes {
        raw[..bytes.len()].copy_from_slice(bytes);
    }
    raw
}

/// Replaces an element by what `change` makes of it, or leaves it for `None`; gives the former value.
fn exchange(target: LocalBuf, change: impl Fn(&Raw) -> Option<Raw>) -> Raw {
    let at = std::ptr::with_exposed_provenance_mut::<u8>(usize::try_from(target.address()).unwrap_or(0));
    macro_rules! word {
        ($atomic:ty, $word:ty) => {{
            // SAFETY: these bytes are registered (`find` or `atomic_there` checked it), and aligned (checked below). Others
            // change them by atomic accesses of this size only, to which the program agreed by registering them.
            let cell = unsafe { <$atomic>::from_ptr(at.cast::<$word>()) };
            let mut old = cell.load(Ordering::SeqCst);
            loop {
                let former = raw(Some(&old.to_ne_bytes()));
                let Some(new) = change(&former) else { return former };
                let new =
                    <$word>::from_ne_bytes(new[..size_of::<$word>()].try_into().unwrap_or_default());
                match cell.compare_exchange_weak(old, new, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(_) => return former,
                    Err(found) => old = found,
                }
            }
        }};
    }
    match target.len() {
        1 => word!(AtomicU8, u8),
        2 if at.cast::<u16>().is_aligned() => word!(AtomicU16, u16),
        4 if at.cast::<u32>().is_aligned() => word!(AtomicU32, u32),
        8 if at.cast::<u64>().is_aligned() => word!(AtomicU64, u64),
        _ => {
            static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
            let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
            let mut former = [0; LARGEST];
            target.read(&mut former[..target.len().min(LARGEST)]);
            if let Some(new) = change(&former) {
                target.write(&new[..target.len().min(LARGEST)]);
            }
            former
        }
    }
}

/// The new value of an element, or `None` when it stays.
fn step(datatype: u32, op: u32, old: &Raw, operand: &Raw, compare: &Raw) -> Option<Raw> {
    match op {
        FI_ATOMIC_READ => return None,
        FI_ATOMIC_WRITE => return Some(*operand),
        _ => {}
    }
    macro_rules! of {
        ($number:ty, $step:ident) => {{
            let take = |from: &Raw| {
                <$number>::from_ne_bytes(from[..size_of::<$number>()].try_into().unwrap_or_default())
            };
            $step(op, take(old), take(operand), take(compare)).map(|new| raw(Some(&new.to_ne_bytes())))
        }};
    }
    match datatype {
        FI_INT8 => of!(i8, int_i8),
        FI_UINT8 => of!(u8, int_u8),
        FI_INT16 => of!(i16, int_i16),
        FI_UINT16 => of!(u16, int_u16),
        FI_INT32 => of!(i32, int_i32),
        FI_UINT32 => of!(u32, int_u32),
        FI_INT64 => of!(i64, int_i64),
        FI_UINT64 => of!(u64, int_u64),
        FI_FLOAT => of!(f32, float_f32),
        FI_DOUBLE => of!(f64, float_f64),
        FI_FLOAT_COMPLEX => complex_f32(op, old, operand, compare),
        FI_DOUBLE_COMPLEX => complex_f64(op, old, operand, compare),
        _ => None,
    }
}

/// The operations that integers and floats have in common; the compare forms mean `compare OP target`.
macro_rules! common {
    ($op:expr, $old:expr, $with:expr, $compare:expr, $one:expr, $zero:expr) => {{
        let truth = |b: bool| Some(if b { $one } else { $zero });
        match $op {
            FI_MIN => Some(if $with < $old { $with } else { $old }),
            FI_MAX => Some(if $with > $old { $with } else { $old }),
            FI_LOR => truth($old != $zero || $with != $zero),
            FI_LAND => truth($old != $zero && $with != $zero),
            FI_LXOR => truth(($old != $zero) != ($with != $zero)),
            FI_CSWAP => ($compare == $old).then_some($with),
            FI_CSWAP_NE => ($compare != $old).then_some($with),
            FI_CSWAP_LE => ($compare <= $old).then_some($with),
            FI_CSWAP_LT => ($compare < $old).then_some($with),
            FI_CSWAP_GE => ($compare >= $old).then_some($with),
            FI_CSWAP_GT => ($compare > $old).then_some($with),
            _ => None,
        }
    }};
}

macro_rules! ints {
    ($($name:ident $number:ty),*) => {$(
        fn $name(op: u32, old: $number, with: $number, compare: $number) -> Option<$number> {
            match op {
                FI_SUM => Some(old.wrapping_add(with)),
                FI_PROD => Some(old.wrapping_mul(with)),
                FI_BOR => Some(old | with),
                FI_BAND => Some(old & with),
                FI_BXOR => Some(old ^ with),
                FI_MSWAP => Some((with & compare) | (old & !compare)),
                _ => common!(op, old, with, compare, 1, 0),
            }
        }
    )*};
}
ints!(int_i8 i8, int_u8 u8, int_i16 i16, int_u16 u16, int_i32 i32, int_u32 u32, int_i64 i64, int_u64 u64);

// The operations are defined by the equality of floats.
macro_rules! floats {
    ($($name:ident $complex:ident $number:ty),*) => {$(
        fn $name(op: u32, old: $number, with: $number, compare: $number) -> Option<$number> {
            match op {
                FI_SUM => Some(old + with),
                FI_PROD => Some(old * with),
                _ => common!(op, old, with, compare, 1.0, 0.0),
            }
        }

        fn $complex(op: u32, old: &Raw, with: &Raw, compare: &Raw) -> Option<Raw> {
            const HALF: usize = size_of::<$number>();
            let take = |from: &Raw| {
                let part = |at: usize| {
                    <$number>::from_ne_bytes(from[at..at + HALF].try_into().unwrap_or_default())
                };
                (part(0), part(HALF))
            };
            let (a, b, c) = (take(old), take(with), take(compare));
            let is = |n: ($number, $number)| n.0 != 0.0 || n.1 != 0.0;
            let truth = |b: bool| if b { (1.0, 0.0) } else { (0.0, 0.0) };
            let new = match op {
                FI_SUM => (a.0 + b.0, a.1 + b.1),
                FI_PROD => (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0),
                FI_LOR => truth(is(a) || is(b)),
                FI_LAND => truth(is(a) && is(b)),
                FI_LXOR => truth(is(a) != is(b)),
                FI_CSWAP if c == a => b,
                FI_CSWAP_NE if c != a => b,
                _ => return None,
            };
            let mut made = [0; LARGEST];
            made[..HALF].copy_from_slice(&new.0.to_ne_bytes());
            made[HALF..2 * HALF].copy_from_slice(&new.1.to_ne_bytes());
            Some(made)
        }
    )*};
}
floats!(float_f32 complex_f32 f32, float_f64 complex_f64 f64);

#[cfg(test)]
mod tests {
    use super::*;

    fn run(
        memory: &mut [u8],
        kind: AtomicKind,
        datatype: u32,
        op: u32,
        operand: &[u8],
        compare: &[u8],
    ) -> Result<Vec<u8>, Status> {
        let count = u32::try_from(memory.len() / size(datatype).unwrap_or(1)).unwrap();
        // SAFETY: used at once, and not moved in between.
        let target = unsafe { LocalBuf::of(memory) };
        std::ptr::from_mut(memory).cast::<u8>().expose_provenance();
        let (datatype, op) = (u8::try_from(datatype).unwrap(), u8::try_from(op).unwrap());
        let mut before = Vec::new();
        apply(target, &RemoteAtomic { kind, datatype, op, count, operand, compare }, &mut before)?;
        Ok(before)
    }

    #[test]
    fn sums_wrap_and_give_the_former_value() {
        let mut memory = [250u8, 1];
        assert_eq!(run(&mut memory, AtomicKind::Fetch, FI_UINT8, FI_SUM, &[10, 1], &[]), Ok(vec![250, 1]));
        assert_eq!(memory, [4, 2]);
        let mut memory = 1.5f64.to_ne_bytes();
        assert_eq!(
            run(&mut memory, AtomicKind::Plain, FI_DOUBLE, FI_PROD, &4.0f64.to_ne_bytes(), &[]),
            Ok(vec![])
        );
        assert_eq!(f64::from_ne_bytes(memory), 6.0);
    }

    #[test]
    fn a_swap_compares_the_operand_with_the_target() {
        for (op, compare, swapped) in [
            (FI_CSWAP, 5, true),
            (FI_CSWAP, 6, false),
            (FI_CSWAP_NE, 6, true),
            (FI_CSWAP_LE, 5, true),
            (FI_CSWAP_LT, 5, false),
            (FI_CSWAP_LT, 4, true),
            (FI_CSWAP_GE, 5, true),
            (FI_CSWAP_GT, 6, true),
        ] {
            let mut memory = 5i32.to_ne_bytes();
            let operand = 9i32.to_ne_bytes();
            let compare = i32::to_ne_bytes(compare);
            let old = run(&mut memory, AtomicKind::Compare, FI_INT32, op, &operand, &compare).unwrap();
            assert_eq!(old, 5i32.to_ne_bytes());
            assert_eq!(i32::from_ne_bytes(memory) == 9, swapped, "operation {op}");
        }
        let mut memory = [0b1111_0000u8];
        run(&mut memory, AtomicKind::Compare, FI_UINT8, FI_MSWAP, &[0b0000_1010], &[0b0011_1111]).unwrap();
        assert_eq!(memory, [0b1100_1010]);
    }

    #[test]
    fn complex_numbers_multiply() {
        let number = |re: f64, im: f64| [re.to_ne_bytes(), im.to_ne_bytes()].concat();
        let mut memory = number(1.0, 2.0);
        run(&mut memory, AtomicKind::Plain, FI_DOUBLE_COMPLEX, FI_PROD, &number(3.0, -1.0), &[]).unwrap();
        assert_eq!(memory, number(5.0, 5.0));
    }

    #[test]
    fn misaligned_elements_and_long_doubles_work() {
        let mut memory = [0u8; 9];
        run(&mut memory[1..], AtomicKind::Plain, FI_UINT64, FI_SUM, &7u64.to_ne_bytes(), &[]).unwrap();
        assert_eq!(memory[1..], 7u64.to_ne_bytes());
        let mut memory = [1u8; 16];
        assert_eq!(
            run(&mut memory, AtomicKind::Fetch, FI_LONG_DOUBLE, FI_ATOMIC_WRITE, &[2; 16], &[]),
            Ok(vec![1; 16])
        );
        assert_eq!(memory, [2; 16]);
    }

    #[test]
    fn what_is_not_supported_is_refused() {
        let refused = Err(Status::Unsupported);
        let mut memory = [0u8; 8];
        assert_eq!(run(&mut memory, AtomicKind::Plain, FI_UINT64, FI_CSWAP, &[0; 8], &[]), refused);
        assert_eq!(run(&mut memory, AtomicKind::Compare, FI_UINT64, FI_SUM, &[0; 8], &[0; 8]), refused);
        assert_eq!(run(&mut memory, AtomicKind::Plain, FI_DOUBLE, FI_BOR, &[0; 8], &[]), refused);
        assert_eq!(run(&mut memory, AtomicKind::Plain, FI_UINT64, FI_SUM, &[0; 7], &[]), refused, "short");
        assert_eq!(run(&mut memory, AtomicKind::Plain, FI_DATATYPE_LAST, FI_SUM, &[0; 8], &[]), refused);
        assert_eq!(run(&mut memory, AtomicKind::Plain, FI_UINT64, FI_ATOMIC_OP_LAST, &[0; 8], &[]), refused);
    }
}
