//! What a program's file says of itself: ELF, after the System V gABI, chapters 4 and 5. Any file may be given; every offset in
//! it is checked.

use std::ops::Range;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;
/// Most program headers that are read.
const MOST_HEADERS: u16 = 256;
/// What each program of Go has near the beginning of its data, at a multiple of 16 bytes.
const GO_MAGIC: &[u8; 14] = b"\xff Go buildinf:";
/// Bytes there in which Go itself looks for it.
const GO_DATA: usize = 64 << 10;

/// An ELF file.
#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    /// Whether its addresses have 64 bits.
    pub is_64_bit: bool,
    /// Its processor, by the number that ELF has for it.
    pub machine: u16,
    /// The dynamic linker that it asks for; a static program has none.
    pub interpreter: Option<String>,
    /// Names of the functions that it has from others, and others from it.
    pub names: Vec<String>,
    /// Whether Go's compiler has made it.
    pub is_go: bool,
    /// Its code.
    code: Vec<Range<usize>>,
}

struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    bytes: u64,
}

impl Segment {
    fn range(&self) -> Range<usize> {
        size(self.offset)..size(self.offset.saturating_add(self.bytes))
    }
}

impl Program {
    /// What is in `image`; none if that is no ELF file, or a damaged one.
    pub fn parse(image: &[u8]) -> Option<Self> {
        if image.get(..4)? != b"\x7fELF" {
            return None;
        }
        let (is_64_bit, is_little) = (image.get(4)? == &2, image.get(5)? == &1);
        let machine = u16::from_le_bytes(image.get(18..20)?.try_into().ok()?);
        let mut program =
            Self { is_64_bit, machine, interpreter: None, names: Vec::new(), is_go: false, code: Vec::new() };
        if !is_64_bit || !is_little {
            // Of another kind of machine, nothing else matters.
            program.machine = if is_little { machine } else { machine.swap_bytes() };
            return Some(program);
        }
        let segments = segments(image)?;
        let text = |range: Range<usize>| Some(String::from_utf8_lossy(image.get(range)?).into_owned());
        let interpreter = segments.iter().find(|segment| segment.kind == PT_INTERP);
        program.interpreter = interpreter.and_then(|segment| text(segment.range()));
        if let Some(name) = &mut program.interpreter {
            name.truncate(name.find('\0').unwrap_or(name.len()));
        }
        program.names = names(image, &segments).unwrap_or_default();
        let is_code = |segment: &&Segment| segment.kind == PT_LOAD && segment.flags & PF_X != 0;
        program.code = segments.iter().filter(is_code).map(Segment::range).collect();
        program.is_go = is_go(image, &segments);
        Some(program)
    }

    /// Which of `calls`, numbers of system calls, the code seems to make itself: a guess, as it sees only a number that is put
    /// into the register just before. On x86-64 alone.
    pub fn direct_calls(&self, image: &[u8], calls: &[u32]) -> Vec<u32> {
        /// Bytes before the instruction in which the number is looked for.
        const BEFORE: usize = 32;
        const SYSCALL: [u8; 2] = [0x0f, 0x05];
        const X86_64: u16 = 62;
        let mut found = Vec::new();
        if self.machine != X86_64 {
            return found;
        }
        for code in self.code.iter().filter_map(|range| image.get(range.clone())) {
            let made = code.windows(2).enumerate().filter(|(_, window)| *window == SYSCALL);
            for (at, _) in made {
                let before = &code[at.saturating_sub(BEFORE)..at];
                // mov eax, NUMBER: the last one counts.
                let number = before.windows(5).rev().find(|window| window[0] == 0xb8);
                let number =
                    number.and_then(|window| number_of(&window[1..5])).and_then(|n| u32::try_from(n).ok());
                if let Some(number) = number.filter(|n| calls.contains(n) && !found.contains(n)) {
                    found.push(number);
                }
            }
        }
        found
    }
}

fn segments(image: &[u8]) -> Option<Vec<Segment>> {
    let (table, entry, count) =
        (number::<8>(image, 32)?, number::<2>(image, 54)?, number::<2>(image, 56)?.min(MOST_HEADERS.into()));
    let segment = |index: u64| {
        let at = size(table.saturating_add(index * entry));
        let field = |offset: usize| at.checked_add(offset);
        Some(Segment {
            kind: u32::try_from(number::<4>(image, at)?).ok()?,
            flags: u32::try_from(number::<4>(image, field(4)?)?).ok()?,
            offset: number::<8>(image, field(8)?)?,
            address: number::<8>(image, field(16)?)?,
            bytes: number::<8>(image, field(32)?)?,
        })
    };
    (0..count).map(segment).collect()
}

fn is_go(image: &[u8], segments: &[Segment]) -> bool {
    let data = segments.iter().find(|segment| segment.kind == PT_LOAD && segment.flags & PF_W != 0);
    let bytes = data.and_then(|segment| image.get(segment.range())).unwrap_or_default();
    bytes[..bytes.len().min(GO_DATA)].chunks(16).any(|chunk| chunk.starts_with(GO_MAGIC))
}

/// The table of strings that the dynamic linker reads: names of functions, libraries, versions.
fn names(image: &[u8], segments: &[Segment]) -> Option<Vec<String>> {
    let dynamic = segments.iter().find(|segment| segment.kind == PT_DYNAMIC)?;
    let entries = image.get(dynamic.range())?.as_chunks::<16>().0;
    let value = |wanted: u64| {
        let entry = entries.iter().find(|entry| number::<8>(*entry, 0) == Some(wanted))?;
        number::<8>(entry, 8)
    };
    let (address, bytes) = (value(DT_STRTAB)?, value(DT_STRSZ)?);
    let holds = |segment: &&Segment| {
        segment.kind == PT_LOAD
            && (segment.address..segment.address.saturating_add(segment.bytes)).contains(&address)
    };
    let holder = segments.iter().find(holds)?;
    let start = size(holder.offset.checked_add(address - holder.address)?);
    let table = image.get(start..start.checked_add(size(bytes))?)?;
    let texts = table.split(|b| *b == 0).filter_map(|name| std::str::from_utf8(name).ok());
    Some(texts.filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

fn size(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

fn number_of(bytes: &[u8]) -> Option<u64> {
    (bytes.len() <= 8).then(|| bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

/// The number in `N` bytes at an offset.
fn number<const N: usize>(image: &[u8], at: usize) -> Option<u64> {
    number_of(image.get(at..at.checked_add(N)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn this() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn this_program_is_understood() {
        let program = Program::parse(&this()).unwrap();
        assert!(program.is_64_bit && !program.is_go);
        assert!(program.interpreter.unwrap().contains("ld-linux"));
        assert!(program.names.iter().any(|name| name == "libc.so.6"));
        assert!(program.names.iter().any(|name| name == "write"), "{:?}", program.names);
    }

    #[test]
    fn damaged_files_do_no_harm() {
        let image = this();
        assert_eq!(Program::parse(b"#!/bin/sh\n"), None);
        assert_eq!(Program::parse(b""), None);
        let head = image.len().min(100_000);
        for cut in (0..4096).chain((4096..head).step_by(997)) {
            let _ = Program::parse(&image[..cut]);
        }
        // Every byte of the headers, and of what they point at first.
        let mut damaged = image[..head].to_vec();
        for at in 4..1024 {
            for value in [0, 0x7f, 0xff] {
                let before = std::mem::replace(&mut damaged[at], value);
                if let Some(program) = Program::parse(&damaged) {
                    let _ = program.direct_calls(&damaged, &[29]);
                }
                damaged[at] = before;
            }
        }
    }

    #[test]
    fn a_call_of_its_own_is_found_by_its_number() {
        let code = |number: u8| [0xb8, number, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05].to_vec();
        let of = |code: &[u8], machine| {
            let whole = Program {
                is_64_bit: true,
                machine,
                interpreter: None,
                names: Vec::new(),
                is_go: false,
                code: std::iter::once(0..code.len()).collect(),
            };
            whole.direct_calls(code, &[29, 30])
        };
        assert_eq!((of(&code(29), 62), of(&code(39), 62), of(&code(29), 183)), (vec![29], vec![], vec![]));
        let two = [code(30), code(29), code(30)].concat();
        assert_eq!(of(&two, 62), [30, 29]);
        // A number that is far away says nothing.
        let far = [code(29)[..5].to_vec(), vec![0x90; 40], vec![0x0f, 0x05]].concat();
        assert!(of(&far, 62).is_empty());
    }
}
