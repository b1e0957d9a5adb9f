//! The guest's first file system: this very program as `/init`, the libraries it is linked with, a few modules.
//!
//! Nothing else is needed: the host's own root file system takes over once `/init` has mounted it. The common part is
//! built once per program and kernel and cached; one VM's config is a second, small archive behind it. Uncompressed,
//! since unpacking happens in the guest, at every boot.

use crate::boot_config::{BootConfig, MODULES, PATH};
use crate::cache;
use crate::cpio;
use crate::elf;
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use rustix::fs::FallocateFlags;
use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Bumped when the content changes for the same input.
const LAYOUT: u32 = 1;
/// Images that were not used for so long are removed.
const KEEP: Duration = Duration::from_secs(7 * 24 * 3600);
/// So many are kept that were used since: of some kernels and builds.
const MOST: usize = 4;
/// One that was used within this time stays in any case.
const IN_USE: Duration = Duration::from_secs(3600);

/// The common part for this program and `kernel`: from the cache, or built now. Returns the file's path.
pub fn base(kernel: &Kernel) -> Result<PathBuf> {
    let exe = std::env::current_exe().map_err(Error::io("find this program's own file"))?;
    let libraries = own_libraries(&exe)?;
    let order_file = kernel.modules.join("order");
    let mut hasher = DefaultHasher::new();
    LAYOUT.hash(&mut hasher);
    for file in libraries.iter().chain([&exe, &order_file, &kernel.vmlinux]) {
        cache::file_key(file, &mut hasher)?;
    }
    let dir = cache::dir()?.join("initramfs");
    cache::make(&dir)?;
    let path = dir.join(format!("{}.cpio", cache::key_text(&hasher)));
    if path.is_file() {
        // Marks it as used. If the cache cannot be written, the image can still be used.
        if let Ok(file) = fs::File::options().append(true).open(&path) {
            let _ = file.set_modified(SystemTime::now());
        }
        return Ok(path);
    }
    let archive = pack(&exe, &libraries, &kernel.modules)?;
    cache::write_atomically(&path, &archive)?;
    drop_old(&dir);
    Ok(path)
}

/// Writes the initramfs of one VM: the common part, its config, and the guest driver, if it gets one.
pub fn for_vm(base: &Path, config: &BootConfig, driver: Option<&Path>, out: &Path) -> Result<()> {
    let mut archive = cpio::Writer::new();
    if let Some(driver) = driver {
        let module = fs::read(driver).map_err(Error::io(format!("read {}", driver.display())))?;
        archive.file(&format!("{}/{}", &MODULES[1..], crate::driver::MODULE), 0o644, &module);
    }
    let config_file = config.to_json().map_err(|e| Error::BadConfig {
        vm: config.name.clone(),
        reason: format!(
            "it cannot be told what it shares: {e}; give a directory another name if its own is not UTF-8"
        ),
    })?;
    archive.file(PATH, 0o600, &config_file);
    let told = |e| isthmus_region::room::told(e, out);
    fs::copy(base, out)
        .map_err(|e| Error::io(format!("copy {} to {}", base.display(), out.display()))(told(e)))?;
    fs::File::options()
        .append(true)
        .open(out)
        .and_then(|mut file| file.write_all(&archive.finish()))
        .map_err(|e| Error::io(format!("write {}", out.display()))(told(e)))
}

/// Removes the initramfs of a VM that has booted, `image`. QEMU keeps it mapped for a reset of the VM, which ends it instead
/// (`-no-reboot`), so its blocks are given back besides: what is mapped of them is zeros then.
pub fn discard(image: &Path) -> std::io::Result<()> {
    let file = fs::File::options().write(true).open(image)?;
    let bytes = file.metadata()?.len();
    // A file system that cannot do this keeps them until QEMU has ended.
    let _ = rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, bytes);
    fs::remove_file(image)
}

fn pack(exe: &Path, libraries: &BTreeSet<PathBuf>, modules: &Path) -> Result<Vec<u8>> {
    let read = |path: &Path| fs::read(path).map_err(Error::io(format!("read {}", path.display())));
    let mut files = Files::default();
    // Without it, the kernel gives its first process no standard output for messages.
    files.directory("dev");
    files.archive.character_device("dev/console", 0o600, 5, 1);
    let program = read(exe)?;
    let interpreter = elf::parse(exe, &program)?.interpreter;
    files.file("init", 0o755, &elf::strip(exe, program)?);
    for path in libraries {
        let image = read(path)?;
        let name = elf::parse(path, &image)?.soname;
        // The loader searches for the name that the program was linked with, in the directory of this file.
        let name = match name {
            Some(name) => path.with_file_name(name),
            None => path.clone(),
        };
        files.file(&in_archive(&name), 0o755, &elf::strip(path, image)?);
    }
    if let Some(interpreter) = interpreter {
        let interpreter = PathBuf::from(interpreter);
        let image = read(&interpreter)?;
        files.file(&in_archive(&interpreter), 0o755, &elf::strip(&interpreter, image)?);
    }
    let order = read(&modules.join("order"))?;
    for line in String::from_utf8_lossy(&order).lines() {
        if let Some((_, file)) = line.split_once(' ') {
            files.file(&format!("{}/{file}", &MODULES[1..]), 0o644, &read(&modules.join(file))?);
        }
    }
    files.file(&format!("{}/order", &MODULES[1..]), 0o644, &order);
    Ok(files.archive.finish())
}

fn in_archive(path: &Path) -> String {
    path.to_string_lossy().trim_start_matches('/').to_owned()
}

/// An archive that makes the directories its files need.
struct Files {
    archive: cpio::Writer,
    directories: BTreeSet<String>,
    names: BTreeSet<String>,
}

impl Default for Files {
    fn default() -> Self {
        let mut archive = cpio::Writer::new();
        // An ordinary user's programs need permission to search it.
        archive.directory(".", 0o755);
        Files { archive, directories: BTreeSet::new(), names: BTreeSet::new() }
    }
}

impl Files {
    fn directory(&mut self, name: &str) {
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.directory(parent);
        }
        if !name.is_empty() && self.directories.insert(name.to_owned()) {
            self.archive.directory(name, 0o755);
        }
    }

    fn file(&mut self, name: &str, mode: u32, data: &[u8]) {
        if !self.names.insert(name.to_owned()) {
            return;
        }
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.directory(parent);
        }
        self.archive.file(name, mode, data);
    }
}

/// The libraries that this process has loaded at its start: what the loader mapped is what the guest will need.
fn own_libraries(exe: &Path) -> Result<BTreeSet<PathBuf>> {
    let maps = fs::read_to_string("/proc/self/maps").map_err(Error::io("read /proc/self/maps"))?;
    Ok(libraries_in(&maps, exe))
}

fn libraries_in(maps: &str, exe: &Path) -> BTreeSet<PathBuf> {
    maps.lines()
        .filter_map(|line| {
            let executable = line.split_whitespace().nth(1)?.contains('x');
            // The path is all that follows, blanks included.
            let path = &line[line.find('/')?..];
            let path = Path::new(path.strip_suffix(" (deleted)").unwrap_or(path));
            (executable && path != exe).then(|| path.to_owned())
        })
        .collect()
}

/// Removes images that nobody uses any more, or that are too many. One that was used just now may be about to be copied.
fn drop_old(dir: &Path) {
    let used = |entry: fs::DirEntry| {
        let age = entry.metadata().ok()?.modified().ok()?.elapsed().ok()?;
        Some((age, entry.path()))
    };
    let mut all: Vec<_> = fs::read_dir(dir).into_iter().flatten().flatten().filter_map(used).collect();
    all.sort();
    for (number, (age, path)) in all.iter().enumerate() {
        if *age > KEEP || (number >= MOST && *age > IN_USE) {
            // Another run may have removed it first.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_mappings_of_files_are_the_libraries() {
        let maps = "\
5500-5600 r-xp 00000000 fe:01 10 /usr/bin/isthmus
7f00-7f01 r--p 00000000 fe:01 11 /usr/lib/x86_64-linux-gnu/libc.so.6
7f01-7f02 r-xp 00001000 fe:01 11 /usr/lib/x86_64-linux-gnu/libc.so.6
7f02-7f03 r--p 00000000 fe:01 12 /usr/share/locale/locale.alias
7f03-7f04 r-xp 00000000 fe:01 13                         /home/u/my projects/libown.so (deleted)
7f04-7f05 r-xp 00000000 00:00 0 [vdso]
7f05-7f06 r-xp 00000000 00:00 0
";
        let found = libraries_in(maps, Path::new("/usr/bin/isthmus"));
        let expected = ["/home/u/my projects/libown.so", "/usr/lib/x86_64-linux-gnu/libc.so.6"];
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected.map(PathBuf::from));
    }

    #[test]
    fn an_image_that_was_discarded_takes_no_room_though_it_is_still_open() {
        use std::os::unix::fs::MetadataExt;
        let path = std::env::temp_dir().join(format!("isthmus-image-{}", std::process::id()));
        fs::write(&path, vec![1; 1 << 20]).unwrap();
        let open = fs::File::open(&path).unwrap();
        open.sync_all().unwrap();
        assert!(open.metadata().unwrap().blocks() > 0);
        discard(&path).unwrap();
        assert!(!path.exists());
        assert_eq!((open.metadata().unwrap().blocks(), open.metadata().unwrap().len()), (0, 1 << 20));
        assert!(discard(&path).is_err());
    }

    #[test]
    fn old_images_go_and_a_few_stay() {
        let dir = std::env::temp_dir().join(format!("isthmus-images-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let hours = [0, 0, 0, 0, 0, 2, 3, 24 * 8];
        for (number, hours) in hours.iter().enumerate() {
            let file = fs::File::create(dir.join(number.to_string())).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(hours * 3600 + 1)).unwrap();
        }
        let left = || {
            let names = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
            names.collect::<BTreeSet<_>>().into_iter().collect::<String>()
        };
        drop_old(&dir);
        let many = left();
        for name in ["0", "1", "2"] {
            fs::remove_file(dir.join(name)).unwrap();
        }
        fs::File::create(dir.join("9")).unwrap().set_modified(SystemTime::now() - KEEP / 2).unwrap();
        drop_old(&dir);
        let few = left();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!((many.as_str(), few.as_str()), ("01234", "349"));
    }

    #[test]
    fn an_archive_holds_init_its_loader_and_libraries_with_their_directories() {
        let modules = std::env::temp_dir().join(format!("isthmus-initramfs-{}", std::process::id()));
        fs::create_dir_all(&modules).unwrap();
        fs::write(modules.join("order"), "base a.ko\n").unwrap();
        fs::write(modules.join("a.ko"), "module").unwrap();
        let exe = std::env::current_exe().unwrap();
        let archive = pack(&exe, &own_libraries(&exe).unwrap(), &modules).unwrap();
        fs::remove_dir_all(&modules).unwrap();
        let has = |name: &str| {
            let name = [name.as_bytes(), b"\0"].concat();
            archive.windows(name.len()).any(|window| window == name)
        };
        for name in ["init", "dev/console", "lib64/ld-linux-x86-64.so.2", "modules/order", "modules/a.ko"] {
            assert!(has(name), "{name}");
        }
    }
}
