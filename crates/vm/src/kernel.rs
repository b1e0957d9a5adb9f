//! The guest's kernel: Debian's packaged generic one, fetched into the user's cache, unpacked, never installed.
//!
//! A cached kernel is a directory `kernels/ABI/` with
//! - `vmlinux`, uncompressed, so that QEMU enters it directly (PVH) and no guest decompresses it under emulation;
//! - `modules/`, the few that a guest needs, uncompressed, and `modules/order`: one line per module in the order of
//!   loading, `GROUP FILE`, where the group `net` is only for guests with a network, and `dax` for those with a memory device;
//! - `without`: the modules for memory devices that this kernel does not have.
//!
//! It appears by one rename, so it is whole or absent, and a lock keeps two runs from fetching at once. The first
//! source that works wins: the cache; a kernel of that package installed on this machine; the package, by
//! `apt-get download` as any user, with package lists in the cache if the system has none.

use crate::cache;
use crate::download;
use crate::error::{Error, Result};
use crate::programs;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::hash::DefaultHasher;
use std::path::{Path, PathBuf};

/// The modules that guests need, by name, with the group they are loaded in. Their dependencies are added.
const WANTED: [(&str, &str); 11] = [
    ("virtio_pci", "base"),
    ("virtio_console", "base"),
    ("9pnet_virtio", "base"),
    ("9p", "base"),
    ("overlay", "base"),
    ("dummy", "base"),
    ("virtio_net", "net"),
    ("device_dax", DAX),
    ("dax_pmem", DAX),
    ("nd_pmem", DAX),
    ("nfit", DAX),
];
/// The group of those for memory devices, which a kernel need not have.
const DAX: &str = "dax";
/// The file of a kernel directory that says which of those it does not have.
const WITHOUT: &str = "without";

/// The file of a kernel directory that says where the modules were taken from.
const TREE: &str = "tree";

/// The package that always depends on the newest generic kernel.
const META_PACKAGE: &str = "linux-image-amd64";

/// A kernel that can be booted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its release, as `uname -r` prints it in the guest.
    pub release: String,
    /// The uncompressed image.
    pub vmlinux: PathBuf,
    /// The directory with the modules and the file `order`.
    pub modules: PathBuf,
}

impl Kernel {
    /// The guest driver that the kernel's own modules have now, if they do: DKMS puts it among them.
    pub(crate) fn own_driver(&self) -> Option<PathBuf> {
        let dir = self.modules.parent()?;
        let tree = fs::read_to_string(dir.join(TREE)).ok()?;
        let mut files = BTreeMap::new();
        index_modules(&Path::new(&tree).join("updates"), &mut files);
        let content = unpacked(files.get("isthmus")?).ok()?;
        let module = dir.join(crate::driver::MODULE);
        if fs::read(&module).ok().as_ref() != Some(&content) {
            cache::write_atomically(&module, &content).ok()?;
        }
        Some(module)
    }

    /// Whether guests with this kernel can have memory devices (DAX).
    fn check_dax(&self) -> Result<()> {
        let without = self.modules.parent().and_then(|dir| fs::read_to_string(dir.join(WITHOUT)).ok());
        match without.as_deref() {
            Some("") => Ok(()),
            without => Err(Error::NoDax {
                release: self.release.clone(),
                modules: without.unwrap_or("for it").lines().collect::<Vec<_>>().join(", "),
            }),
        }
    }

    /// Whether it was taken by this version, which knows of all modules that guests may need.
    fn is_current(&self) -> bool {
        self.modules.parent().is_some_and(|dir| dir.join(WITHOUT).is_file())
    }

    fn in_dir(release: &str, dir: &Path) -> Option<Kernel> {
        let kernel = Kernel {
            release: release.to_owned(),
            vmlinux: dir.join("vmlinux"),
            modules: dir.join("modules"),
        };
        (kernel.vmlinux.is_file() && kernel.modules.join("order").is_file()).then_some(kernel)
    }
}

/// Finds a kernel, or fetches one. `chosen` is the user's own (`--kernel`): a vmlinux or bzImage, whose modules lie in
/// `modules/` or `lib/modules/RELEASE` next to it, in `../lib/modules/RELEASE` or `../usr/lib/modules/RELEASE`, or in
/// `/lib/modules/RELEASE`.
/// With `dax` it has the modules for memory devices; a kernel that an earlier version fetched, without looking for them, is fetched again
/// then. `progress` gets a line before each step that takes time.
///
/// # Errors
/// [`Error::NoKernel`]; [`Error::NoModule`]; [`Error::NoDax`]; [`Error::BadKernel`] for `chosen`.
pub fn find(chosen: Option<&Path>, dax: bool, progress: &mut dyn FnMut(&str)) -> Result<Kernel> {
    let kernel = any(chosen, dax, progress)?;
    if dax {
        kernel.check_dax()?;
    }
    Ok(kernel)
}

fn any(chosen: Option<&Path>, dax: bool, progress: &mut dyn FnMut(&str)) -> Result<Kernel> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(Error::NoKernel {
            reason: format!("guests are x86-64 only, this machine is {}", std::env::consts::ARCH),
        });
    }
    let kernels = cache::dir()?.join("kernels");
    cache::make(&kernels)?;
    if let Some(path) = chosen {
        return custom(path, &kernels, dax, progress);
    }
    let cached = || newest_cached(&kernels, dax);
    if let Some(kernel) = cached() {
        return Ok(kernel);
    }
    if newest_cached(&kernels, false).is_some() {
        progress(
            "fetching the guests' kernel again: an earlier version left out the modules for --source dax",
        );
    }
    let _lock = cache::lock(&kernels, ".lock")?;
    // The process that held the lock may have fetched it.
    if let Some(kernel) = cached() {
        return Ok(kernel);
    }
    clean_leftovers(&kernels);
    if let Some(kernel) = installed(&kernels, progress)? {
        return Ok(kernel);
    }
    download(&kernels, progress)
}

/// The kernel that [`find`] would take without fetching or preparing anything.
pub fn at_hand() -> Option<Kernel> {
    newest_cached(&cache::dir().ok()?.join("kernels"), false)
}

/// The newest of the fetched kernels, with `current` of those of this version; those made from a user's own file are not among them.
fn newest_cached(kernels: &Path, current: bool) -> Option<Kernel> {
    let mut found: Vec<Kernel> = fs::read_dir(kernels)
        .ok()?
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let plain = name.starts_with(|first: char| first.is_ascii_digit());
            let kernel = plain.then(|| Kernel::in_dir(&name, &entry.path()))??;
            (!current || kernel.is_current()).then_some(kernel)
        })
        .collect();
    found.sort_by_key(|kernel| version_key(&kernel.release));
    found.pop()
}

/// Numbers compare as numbers: 6.1.0-56 is newer than 6.1.0-9.
fn version_key(release: &str) -> Vec<u64> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

/// Removes the unfinished files of killed runs. The caller holds the lock.
fn clean_leftovers(kernels: &Path) {
    for entry in fs::read_dir(kernels).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(".new-") {
            // A failure is harmless: nothing ever reads these.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A generic Debian kernel that is installed on this machine.
fn installed(kernels: &Path, progress: &mut dyn FnMut(&str)) -> Result<Option<Kernel>> {
    let releases = fs::read_dir("/boot").into_iter().flatten().flatten();
    let mut releases: Vec<String> = releases
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let release = name.strip_prefix("vmlinuz-")?;
            is_generic(release).then(|| release.to_owned())
        })
        .collect();
    releases.sort_by_key(|release| version_key(release));
    for release in releases.iter().rev() {
        let image = PathBuf::from(format!("/boot/vmlinuz-{release}"));
        let modules = PathBuf::from(format!("/lib/modules/{release}"));
        if fs::File::open(&image).is_err() || !modules.join("kernel/fs/9p").is_dir() {
            continue;
        }
        progress(&format!("preparing the installed kernel {release} for guests (once)"));
        return make(kernels, release, release, &image, Some(&modules)).map(Some);
    }
    Ok(None)
}

/// `6.1.0-56-amd64`, but not `6.1.0-56-cloud-amd64` (no 9p) or `-rt-amd64`.
fn is_generic(release: &str) -> bool {
    let Some(version) = release.strip_suffix("-amd64") else {
        return false;
    };
    !version.ends_with("-cloud") && !version.ends_with("-rt")
}

fn download(kernels: &Path, progress: &mut dyn FnMut(&str)) -> Result<Kernel> {
    programs::find("apt-get").ok_or_else(|| Error::NoKernel {
        reason: "this system has no apt-get to fetch Debian's with".to_owned(),
    })?;
    let work = kernels.join(format!(".new-apt-{}", std::process::id()));
    cache::make(&work)?;
    let result = download_in(&work, kernels, progress).map_err(|error| short_of_room(error, &work));
    // The .deb and its unpacked tree are hundreds of megabytes. If this fails, the next run removes them.
    let _ = fs::remove_dir_all(&work);
    result
}

/// Removes this process's unfinished files, before it is ended in the middle of a download or a build.
pub fn abandon() {
    crate::driver::abandon();
    let Ok(kernels) = cache::dir().map(|dir| dir.join("kernels")) else { return };
    let own = format!("-{}", std::process::id());
    for entry in fs::read_dir(kernels).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(".new-") && name.ends_with(&own) {
            // Files that are being written at this moment are removed before the next download.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Adds which file system has no room, since helper programs do not say that.
fn short_of_room(error: Error, work: &Path) -> Error {
    const LITTLE: u64 = 8 << 20;
    match isthmus_region::room::left(work) {
        Some((bytes, mount)) if bytes < LITTLE && matches!(error, Error::ProgramFailed { .. }) => {
            Error::NoKernel {
                reason: format!(
                    "{error}; the file system at {} has {} KiB left, and some 700 MB are needed for a moment: make room \
                 there, or {}",
                    mount.display(),
                    bytes >> 10,
                    cache::ELSEWHERE
                ),
            }
        }
        _ => error,
    }
}

fn download_in(work: &Path, kernels: &Path, progress: &mut dyn FnMut(&str)) -> Result<Kernel> {
    let mut got = None;
    let options = apt_options(work, false);
    if let Some(package) = resolve(&options)? {
        match download_package(&options, &package, work, progress) {
            Ok(()) => got = Some(package),
            // Old lists name versions that the archive no longer has.
            Err(Error::ProgramFailed { stderr, .. }) if stderr.contains("404") => {
                progress("the archive has no such version any more");
            }
            Err(error) => return Err(error),
        }
    }
    let package = match got {
        Some(package) => package,
        None => {
            let missing = update(work, progress)?;
            let options = apt_options(work, true);
            let package = resolve(&options)?.ok_or_else(|| Error::NoKernel {
                reason: missing
                    .unwrap_or_else(|| format!("apt knows no package {META_PACKAGE} (is this Debian?)")),
            })?;
            download_package(&options, &package, work, progress)?;
            package
        }
    };
    let deb = fs::read_dir(work)
        .map_err(Error::io("read the download directory"))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .ok_or_else(|| Error::NoKernel {
            reason: format!("apt-get download {package} succeeded without a file"),
        })?;
    progress(&format!("unpacking {package}"));
    let tree = work.join("tree");
    let arguments = [OsString::from("-x"), deb.into(), tree.clone().into()];
    programs::output("dpkg-deb", "dpkg", arguments)?;
    let release = package.trim_start_matches("linux-image-").to_owned();
    let image = tree.join(format!("boot/vmlinuz-{release}"));
    let modules = module_tree(&tree, &release)
        .ok_or_else(|| Error::NoKernel { reason: format!("{package} holds no modules for {release}") })?;
    make(kernels, &release, &release, &image, Some(&modules))
}

/// Downloads packages into `work`, which is made if need be.
pub(crate) fn fetch(packages: &[String], work: &Path, progress: &mut dyn FnMut(&str)) -> Result<()> {
    let what = packages.join(", ");
    cache::make(work)?;
    let download = |private, progress: &mut dyn FnMut(&str)| {
        let names: Vec<OsString> = packages.iter().map(OsString::from).collect();
        let arguments = [apt_options(work, private), words(&["-q", "download"]), names].concat();
        download::watched(&what, &arguments, work, progress).map(drop)
    };
    progress(&format!("downloading {what} (once)"));
    // The system's own lists may be old, or name none of them.
    let mut missing = None;
    if !work.join("state").is_dir() {
        match download(false, progress) {
            Err(Error::ProgramFailed { .. }) => missing = update(work, progress)?,
            other => return other,
        }
    }
    download(true, progress).map_err(|e| match (e, missing) {
        (Error::ProgramFailed { stderr, .. }, Some(reason)) if stderr.contains("Unable to locate") => {
            Error::NoKernel { reason }
        }
        (e, _) => e,
    })
}

/// Fetches package lists into `work`. Returns what is wrong if some did not come: apt-get update ends with status 0 then.
fn update(work: &Path, progress: &mut dyn FnMut(&str)) -> Result<Option<String>> {
    progress("fetching package lists into the cache (this system has none that serve)");
    for dir in ["state/lists/partial", "cache/archives/partial"] {
        cache::make(&work.join(dir))?;
    }
    let update = [apt_options(work, true), words(&["-q", "update"])].concat();
    let said = download::watched("the package lists", &update, work, progress)?;
    let why = said.lines().find_map(|line| line.split_once("Failed to fetch ").map(|(_, why)| why.trim()));
    Ok(why.map(|why| {
        format!(
            "the package lists could not be fetched: {why}; see to the network (or apt's proxy) and try again"
        )
    }))
}

fn download_package(
    options: &[OsString],
    package: &str,
    work: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<()> {
    progress(&format!("downloading {package} (about 70 MB, once)"));
    let arguments = [options, &words(&["-q", "download", package])].concat();
    download::watched(package, &arguments, work, progress).map(drop)
}

/// Debian 12 has them in /lib, Debian 13 in /usr/lib.
fn module_tree(root: &Path, release: &str) -> Option<PathBuf> {
    ["lib/modules", "usr/lib/modules"]
        .map(|dir| root.join(dir).join(release))
        .into_iter()
        .find(|dir| dir.join("kernel").is_dir())
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// With `private`, apt keeps its lists and caches below `work` and touches nothing of the system's.
fn apt_options(work: &Path, private: bool) -> Vec<OsString> {
    // As root, apt would download as the user _apt, which may not write into root's cache, and warn about it.
    let mut options = vec!["APT::Sandbox::User=root".to_owned()];
    // A connection that breaks or stalls is made again, and the download resumes.
    options.extend(["Retries=3", "http::Timeout=15", "https::Timeout=15"].map(|o| format!("Acquire::{o}")));
    if private {
        let work = work.display();
        options.push(format!("Dir::State={work}/state"));
        options.push(format!("Dir::State::lists={work}/state/lists"));
        options.push(format!("Dir::Cache={work}/cache"));
        options.push("Dir::State::status=/var/lib/dpkg/status".to_owned());
    }
    options.into_iter().flat_map(|option| [OsString::from("-o"), OsString::from(option)]).collect()
}

/// The package that the meta package depends on, or nothing if apt does not know it.
fn resolve(options: &[OsString]) -> Result<Option<String>> {
    let arguments = [options, &words(&["depends", META_PACKAGE])].concat();
    match programs::output("apt-cache", "apt", arguments) {
        Ok(text) => Ok(parse_depends(&String::from_utf8_lossy(&text))),
        Err(Error::ProgramFailed { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn parse_depends(text: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|package| {
            package
                .strip_prefix("linux-image-")
                .is_some_and(|release| release.starts_with(|c: char| c.is_ascii_digit()))
        })
        .map(str::to_owned)
}

fn custom(path: &Path, kernels: &Path, dax: bool, progress: &mut dyn FnMut(&str)) -> Result<Kernel> {
    let path = fs::canonicalize(path).map_err(Error::io(format!("find the kernel {}", path.display())))?;
    let mut hasher = DefaultHasher::new();
    cache::file_key(&path, &mut hasher)?;
    let name = format!("custom-{}", cache::key_text(&hasher));
    let release_file = kernels.join(&name).join("release");
    let known = || {
        let release = fs::read_to_string(&release_file).ok()?;
        Kernel::in_dir(&release, &kernels.join(&name)).filter(|kernel| !dax || kernel.is_current())
    };
    if let Some(kernel) = known() {
        return Ok(kernel);
    }
    let _lock = cache::lock(kernels, ".lock")?;
    if let Some(kernel) = known() {
        return Ok(kernel);
    }
    progress(&format!("preparing {} (once)", path.display()));
    let image = fs::read(&path).map_err(Error::io(format!("read {}", path.display())))?;
    let vmlinux = decompress_kernel(&path, &image)?;
    let release = release_of(&vmlinux).ok_or_else(|| Error::BadKernel {
        path: path.clone(),
        reason: "it does not name its Linux version".to_owned(),
    })?;
    let near = path.parent().unwrap_or(Path::new("/"));
    let candidates = [
        near.join("modules"),
        near.join("lib/modules").join(&release),
        near.join("../lib/modules").join(&release),
        near.join("../usr/lib/modules").join(&release),
        Path::new("/lib/modules").join(&release),
    ];
    // A kernel may have everything built in, so a missing directory is an error only if a module is needed.
    let modules = candidates.into_iter().find(|dir| dir.is_dir());
    make(kernels, &name, &release, &path, modules.as_deref())
}

/// Builds a kernel directory and renames it into place. The caller holds the lock.
fn make(kernels: &Path, name: &str, release: &str, image: &Path, modules: Option<&Path>) -> Result<Kernel> {
    let new = kernels.join(format!(".new-{name}-{}", std::process::id()));
    let target = kernels.join(name);
    let result = (|| {
        let target_modules = new.join("modules");
        cache::make(&target_modules)?;
        let packed = fs::read(image).map_err(Error::io(format!("read {}", image.display())))?;
        let vmlinux = decompress_kernel(image, &packed)?;
        let write = |path: PathBuf, data: &[u8]| cache::write(&path, data);
        write(new.join("vmlinux"), &vmlinux)?;
        write(new.join("release"), release.as_bytes())?;
        let mut order = String::new();
        let (chosen, without) = select_modules(modules)?;
        write(new.join(WITHOUT), without.join("\n").as_bytes())?;
        for module in chosen {
            write(target_modules.join(&module.file), &module.data)?;
            order.push_str(&format!("{} {}\n", module.group, module.file));
        }
        if let Some(tree) = modules {
            write(new.join(TREE), tree.as_os_str().as_encoded_bytes())?;
        }
        write(target_modules.join("order"), order.as_bytes())?;
        // What was there may be in use: whoever looks finds one or the other.
        let exchange = rustix::fs::RenameFlags::EXCHANGE;
        match rustix::fs::renameat_with(rustix::fs::CWD, &new, rustix::fs::CWD, &target, exchange) {
            Ok(()) => {
                // If this fails, the next download removes it.
                let _ = fs::remove_dir_all(&new);
                Ok(())
            }
            Err(rustix::io::Errno::NOENT) => {
                fs::rename(&new, &target).map_err(Error::io(format!("create {}", target.display())))
            }
            Err(e) => Err(Error::io(format!("replace {}", target.display()))(e.into())),
        }
    })();
    if result.is_err() {
        let _ = fs::remove_dir_all(&new);
    }
    result?;
    Kernel::in_dir(release, &target).ok_or_else(|| Error::NoKernel {
        reason: format!("{} was just written and is not there", target.display()),
    })
}

struct Module {
    file: String,
    group: &'static str,
    data: Vec<u8>,
}

/// The wanted modules with all they depend on, dependencies first, and the names of those for memory devices that are missing.
///
/// `modules.dep` is made when a kernel is installed, so an unpacked package has none: each module's own list is read.
fn select_modules(tree: Option<&Path>) -> Result<(Vec<Module>, Vec<String>)> {
    let mut files = BTreeMap::new();
    if let Some(tree) = tree {
        index_modules(tree, &mut files);
    }
    let shown = tree.unwrap_or(Path::new("/lib/modules"));
    let list = fs::read_to_string(shown.join("modules.builtin")).unwrap_or_default();
    let builtin: BTreeSet<String> = list.lines().filter_map(|line| module_name(Path::new(line))).collect();
    let (mut chosen, mut without) = (Vec::new(), Vec::new());
    let mut done = BTreeSet::new();
    for (name, group) in WANTED {
        match add_module(name, group, shown, &files, &builtin, &mut done, &mut chosen) {
            Err(Error::NoModule { module, .. }) if group == DAX => without.push(module),
            added => added?,
        }
    }
    Ok((chosen, without))
}

/// A module's content.
fn unpacked(path: &Path) -> Result<Vec<u8>> {
    let packed = fs::read(path).map_err(Error::io(format!("read {}", path.display())))?;
    match packed.starts_with(b"\x7fELF") {
        true => Ok(packed),
        // Debian 13 has .ko.xz. A guest could unpack them itself, but ten times slower, and at every boot.
        false => decompress(path, &packed),
    }
}

fn add_module(
    name: &str,
    group: &'static str,
    tree: &Path,
    files: &BTreeMap<String, PathBuf>,
    builtin: &BTreeSet<String>,
    done: &mut BTreeSet<String>,
    chosen: &mut Vec<Module>,
) -> Result<()> {
    if builtin.contains(name) || !done.insert(name.to_owned()) {
        return Ok(());
    }
    let path =
        files.get(name).ok_or_else(|| Error::NoModule { path: tree.to_owned(), module: name.to_owned() })?;
    let data = unpacked(path)?;
    for dependency in dependencies(&data) {
        add_module(&dependency, group, tree, files, builtin, done, chosen)?;
    }
    chosen.push(Module { file: format!("{name}.ko"), group, data });
    Ok(())
}

fn index_modules(dir: &Path, files: &mut BTreeMap<String, PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        // `build` and `source` are symbolic links to whole source trees.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            index_modules(&path, files);
        } else if let Some(name) = module_name(&path) {
            files.insert(name, path);
        }
    }
}

/// `kernel/fs/9p/9p.ko.xz` is the module `9p`; the kernel takes `-` and `_` in names as the same.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let (name, packing) = file.split_once(".ko")?;
    matches!(packing, "" | ".xz" | ".zst" | ".gz").then(|| name.replace('-', "_"))
}

/// The `depends=` entry of a module's `.modinfo` section.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let rest = &module[at + KEY.len()..];
    let end = rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len());
    String::from_utf8_lossy(&rest[..end])
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

/// How a file is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    None,
    Xz,
    Gzip,
    Zstd,
    Lz4,
    Lzma,
    Bzip2,
}

fn packing(data: &[u8]) -> Option<Packing> {
    // The magic numbers of Linux's own scripts/extract-vmlinux.
    const MAGIC: [(&[u8], Packing); 7] = [
        (b"\x7fELF", Packing::None),
        (b"\xfd7zXZ\0", Packing::Xz),
        (b"\x1f\x8b\x08", Packing::Gzip),
        (b"\x28\xb5\x2f\xfd", Packing::Zstd),
        (b"\x02\x21\x4c\x18", Packing::Lz4),
        (b"\x5d\0\0\0", Packing::Lzma),
        (b"BZh", Packing::Bzip2),
    ];
    MAGIC.iter().find(|(magic, _)| data.starts_with(magic)).map(|&(_, packing)| packing)
}

fn decompress(path: &Path, data: &[u8]) -> Result<Vec<u8>> {
    let unknown =
        || Error::BadKernel { path: path.to_owned(), reason: "its compression is not known".to_owned() };
    match packing(data).ok_or_else(unknown)? {
        Packing::None => Ok(data.to_vec()),
        Packing::Xz => programs::filter("xz", "xz-utils", ["-dc", "--single-stream"], data),
        Packing::Gzip => programs::filter("gzip", "gzip", ["-dc"], data),
        Packing::Zstd => programs::filter("zstd", "zstd", ["-dc", "-q"], data),
        Packing::Lz4 => programs::filter("lz4", "lz4", ["-dc"], data),
        Packing::Lzma => programs::filter("xz", "xz-utils", ["-dc", "--format=lzma"], data),
        Packing::Bzip2 => programs::filter("bzip2", "bzip2", ["-dc"], data),
    }
}

/// The uncompressed kernel in a vmlinux or bzImage file.
fn decompress_kernel(path: &Path, image: &[u8]) -> Result<Vec<u8>> {
    let bad = |reason: &str| Error::BadKernel { path: path.to_owned(), reason: reason.to_owned() };
    let vmlinux = if packing(image) == Some(Packing::None) {
        image.to_vec()
    } else {
        let payload = payload(image).ok_or_else(|| bad("neither an ELF file nor a bzImage"))?;
        decompress(path, payload)?
    };
    if packing(&vmlinux) != Some(Packing::None) {
        return Err(bad("what is packed in it is not an ELF file"));
    }
    Ok(vmlinux)
}

/// The compressed kernel inside a bzImage, found by its setup header (Linux, `Documentation/x86/boot.rst`, 2.08 on).
fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| -> Option<usize> {
        let bytes: [u8; 4] = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let setup_sectors = match *image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (setup_sectors + 1) * 512 + word(0x248)?;
    let payload = image.get(start..start.checked_add(word(0x24c)?)?)?;
    // All formats but gzip are followed by the unpacked size, which the unpackers would report as garbage after the data.
    if packing(payload)? == Packing::Gzip { Some(payload) } else { payload.get(..payload.len() - 4) }
}

/// The release in the kernel's banner, "Linux version RELEASE (...".
fn release_of(vmlinux: &[u8]) -> Option<String> {
    const KEY: &[u8] = b"Linux version ";
    vmlinux.windows(KEY.len()).enumerate().filter(|(_, window)| *window == KEY).find_map(|(at, _)| {
        let rest = &vmlinux[at + KEY.len()..];
        let end = rest.iter().position(|&byte| byte == b' ')?;
        let release = std::str::from_utf8(rest.get(..end)?).ok()?;
        // The banner's format string is in there too.
        release.starts_with(|c: char| c.is_ascii_digit()).then(|| release.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packings_are_told_by_their_magic() {
        assert_eq!(packing(b"\x7fELF\x02\x01"), Some(Packing::None));
        assert_eq!(packing(b"\xfd7zXZ\0rest"), Some(Packing::Xz));
        assert_eq!(packing(b"\x02\x21\x4c\x18...."), Some(Packing::Lz4));
        assert_eq!(packing(b"\x28\xb5\x2f\xfd...."), Some(Packing::Zstd));
        assert_eq!(packing(b"\x1f\x8b\x08\0"), Some(Packing::Gzip));
        assert_eq!(packing(b"MZ"), None);
    }

    fn bz_image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 1024];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&16u32.to_le_bytes());
        let len = u32::try_from(payload.len()).unwrap();
        image[0x24c..0x250].copy_from_slice(&len.to_le_bytes());
        image.extend_from_slice(&[0xcc; 16]);
        image.extend_from_slice(payload);
        image.extend_from_slice(b"what follows");
        image
    }

    #[test]
    fn a_bz_image_yields_the_kernel_packed_in_it() {
        let kernel = b"\x7fELF\x02\x01 Linux version %s (x) Linux version 6.1.0-1-amd64 (y)";
        let mut packed = programs::filter("gzip", "gzip", ["-c"], kernel).unwrap();
        let image = bz_image(&packed);
        let out = decompress_kernel(Path::new("x"), &image).unwrap();
        assert_eq!(out, kernel);
        assert_eq!(release_of(&out).as_deref(), Some("6.1.0-1-amd64"));
        if programs::find("xz").is_some() {
            packed = programs::filter("xz", "xz-utils", ["-c"], kernel).unwrap();
            packed.extend_from_slice(&[1, 2, 3, 4]);
            let image = bz_image(&packed);
            assert_eq!(decompress_kernel(Path::new("x"), &image).unwrap(), kernel);
        }
    }

    #[test]
    fn rubbish_is_refused_with_its_path() {
        let error = decompress_kernel(Path::new("some/file"), b"rubbish").unwrap_err();
        assert!(error.to_string().contains("some/file"));
    }

    #[test]
    fn dependencies_are_read_from_the_module() {
        let module = b"\x7fELF..\0license=GPL\0depends=virtio_ring,virtio-pci-x\0name=a\0";
        assert_eq!(dependencies(module), ["virtio_ring", "virtio_pci_x"]);
        assert!(dependencies(b"\0depends=\0").is_empty());
        assert!(dependencies(b"nothing").is_empty());
    }

    #[test]
    fn modules_come_after_what_they_depend_on() {
        let dir = std::env::temp_dir().join(format!("isthmus-modules-{}", std::process::id()));
        fs::create_dir_all(dir.join("kernel/x")).unwrap();
        let write = |name: &str, depends: &str| {
            let data = format!("\x7fELF\0depends={depends}\0");
            fs::write(dir.join("kernel/x").join(name), data).unwrap();
        };
        write("virtio_pci.ko", "virtio-ring,virtio");
        write("virtio-ring.ko", "virtio");
        write("virtio.ko", "");
        write("virtio_console.ko", "virtio");
        write("9pnet_virtio.ko", "9pnet");
        write("9pnet.ko", "");
        write("9p.ko", "9pnet");
        write("dummy.ko", "");
        write("virtio_net.ko", "failover");
        write("failover.ko", "");
        let missing = select_modules(Some(&dir)).err().unwrap();
        assert!(missing.to_string().contains("overlay"));
        // A module that is built in counts as present.
        fs::write(dir.join("modules.builtin"), "kernel/fs/overlayfs/overlay.ko\n").unwrap();
        let (chosen, without) = select_modules(Some(&dir)).unwrap();
        assert_eq!(without, ["device_dax", "dax_pmem", "nd_pmem", "nfit"]);
        for (name, depends) in [("device_dax.ko", ""), ("nfit.ko", "libnvdimm"), ("libnvdimm.ko", "")] {
            write(name, depends);
        }
        let (with, without) = select_modules(Some(&dir)).unwrap();
        let added: Vec<_> = with[chosen.len()..].iter().map(|m| (m.group, m.file.as_str())).collect();
        assert_eq!(added, [("dax", "device_dax.ko"), ("dax", "libnvdimm.ko"), ("dax", "nfit.ko")]);
        assert_eq!(without, ["dax_pmem", "nd_pmem"]);
        fs::remove_dir_all(&dir).unwrap();
        let order: Vec<_> = chosen.iter().map(|module| (module.group, module.file.as_str())).collect();
        assert_eq!(
            order,
            [
                ("base", "virtio.ko"),
                ("base", "virtio_ring.ko"),
                ("base", "virtio_pci.ko"),
                ("base", "virtio_console.ko"),
                ("base", "9pnet.ko"),
                ("base", "9pnet_virtio.ko"),
                ("base", "9p.ko"),
                ("base", "dummy.ko"),
                ("net", "failover.ko"),
                ("net", "virtio_net.ko"),
            ]
        );
    }

    #[test]
    fn apt_output_is_understood() {
        let text = "linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n";
        assert_eq!(parse_depends(text).as_deref(), Some("linux-image-6.1.0-56-amd64"));
        assert_eq!(parse_depends("linux-image-amd64\n"), None);
    }

    #[test]
    fn newer_means_numerically_newer_and_generic_means_neither_cloud_nor_rt() {
        assert!(version_key("6.1.0-56-amd64") > version_key("6.1.0-9-amd64"));
        assert!(version_key("6.12.1-amd64") > version_key("6.1.0-56-amd64"));
        assert!(is_generic("6.1.0-56-amd64") && is_generic("6.12.38+deb13-amd64"));
        assert!(!is_generic("6.1.0-56-cloud-amd64") && !is_generic("6.1.0-56-rt-amd64"));
    }
}
