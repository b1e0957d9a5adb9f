//! Builds the guest's root from the host's and moves into it.
//!
//! ```text
//! initramfs:  /lower      9p, the host's root, read-only
//!             /rw/upper   tmpfs, what the guest changes
//!             /new        overlay of both  ──moved──►  /
//! ```
//! `/lower` and `/rw` have no path any more after the move; the overlay keeps using them, and we keep a descriptor of
//! `/rw/upper` to list the changes by.

use super::{Result, cannot};
use isthmus_vm::boot_config::{BootConfig, GuestShare, ROOT_TAG};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, mount, mount_move};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

/// The largest message that QEMU's virtio transport for 9p takes.
const MSIZE: u32 = 512_000;

/// Mounts everything, moves into the new root, and returns the overlay's upper directory.
pub(super) fn root(config: &BootConfig) -> Result<OwnedFd> {
    for dir in ["/lower", "/rw", "/new"] {
        directory(Path::new(dir), 0o755)?;
    }
    // The host's files do not change under a job, so the guest may cache them.
    nine_p(ROOT_TAG, "/lower", "cache=loose", true)?;
    attach("tmpfs", "/rw", "tmpfs", MountFlags::empty(), "mode=0755")?;
    directory(Path::new("/rw/upper"), 0o755)?;
    directory(Path::new("/rw/work"), 0o755)?;
    attach(
        "overlay",
        "/new",
        "overlay",
        // No set-uid programs: processes here have the caller's rights and no others.
        MountFlags::NOSUID,
        // Nothing in it outlives the VM, so nothing needs to reach a disk.
        "lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work,volatile",
    )?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let upper = rustix::fs::open("/rw/upper", flags, Mode::empty()).map_err(cannot("open the overlay"))?;
    kernel_file_systems()?;
    for share in &config.shares {
        mount_share(share)?;
    }
    write_names(config)?;
    move_root()?;
    Ok(upper)
}

fn kernel_file_systems() -> Result<()> {
    let plain = MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NODEV;
    attach("proc", "/new/proc", "proc", plain, "")?;
    attach("sysfs", "/new/sys", "sysfs", plain, "")?;
    attach("devtmpfs", "/new/dev", "devtmpfs", MountFlags::NOSUID, "mode=0755")?;
    for (name, mode) in [("pts", 0o755), ("shm", 0o1777)] {
        directory(&Path::new("/new/dev").join(name), mode)?;
    }
    attach(
        "devpts",
        "/new/dev/pts",
        "devpts",
        MountFlags::NOSUID | MountFlags::NOEXEC,
        "gid=5,mode=0620,ptmxmode=0666",
    )?;
    // Where MPI libraries put the memory that processes of one VM share: up to nearly all of the VM's memory.
    attach("tmpfs", "/new/dev/shm", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, "mode=1777,size=90%")?;
    let links = [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ];
    for (name, target) in links {
        symlink(target, Path::new("/new/dev").join(name)).map_err(cannot(format!("make /dev/{name}")))?;
    }
    attach("tmpfs", "/new/run", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, "mode=0755")?;
    directory(Path::new("/new/run/lock"), 0o1777)
}

fn mount_share(share: &GuestShare) -> Result<()> {
    let relative = share.path.strip_prefix("/").unwrap_or(&share.path);
    let target = Path::new("/new").join(relative);
    // It exists on the host, but perhaps below /run, which is the guest's own.
    if !target.is_dir() {
        directory(&target, 0o755)?;
    }
    // Nothing is cached, so that the others read what one VM has written.
    let options = share.options.as_deref().unwrap_or("cache=none");
    nine_p(&share.tag, &target, options, share.read_only)
}

fn nine_p(tag: &str, target: impl AsRef<Path>, options: &str, read_only: bool) -> Result<()> {
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    if read_only {
        flags |= MountFlags::RDONLY;
    }
    let options = format!("trans=virtio,version=9p2000.L,msize={MSIZE},{options}");
    attach(tag, target, "9p", flags, &options)
}

/// Adds the VMs' names to the host's files, in the overlay; the host's copies stay as they are.
fn write_names(config: &BootConfig) -> Result<()> {
    let etc = Path::new("/new/etc");
    let mut hosts =
        fs::read_to_string(etc.join("hosts")).unwrap_or_else(|_| "127.0.0.1 localhost\n".to_owned());
    if !hosts.ends_with('\n') {
        hosts.push('\n');
    }
    for host in &config.hosts {
        hosts.push_str(&format!("{} {}\n", host.address, host.name));
    }
    if !config.hosts.iter().any(|host| host.name == config.name) {
        // As Debian does, since programs resolve the name of their own host.
        hosts.push_str(&format!("127.0.1.1 {}\n", config.name));
    }
    replace(&etc.join("hosts"), &hosts)?;
    replace(&etc.join("hostname"), &format!("{}\n", config.name))
}

/// Replaces a file by a new one. Writing to it may fail: in containers these files are often mount points, whose copy
/// in the lower directory cannot be written.
fn replace(path: &PathBuf, content: &str) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(cannot(format!("replace {}", path.display()))(error));
        }
        _ => {}
    }
    fs::write(path, content).map_err(cannot(format!("write {}", path.display())))
}

fn move_root() -> Result<()> {
    std::env::set_current_dir("/new").map_err(cannot("enter the new root"))?;
    mount_move(".", "/").map_err(cannot("move the new root"))?;
    rustix::process::chroot(".").map_err(cannot("change to the new root"))?;
    std::env::set_current_dir("/").map_err(cannot("enter the new root"))
}

fn directory(path: &Path, mode: u32) -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(mode).create(path);
    made.map_err(cannot(format!("make the directory {}", path.display())))?;
    // The umask has reduced the mode above.
    rustix::fs::chmod(path, Mode::from_raw_mode(mode))
        .map_err(cannot(format!("set the mode of {}", path.display())))
}

/// Mounts memory of the VM's own over a folder, so that sockets can be bound there: the folder may be in a share,
/// which cannot hold sockets, and statfs(2) does not show that, since it reports the host's file system.
pub(super) fn private_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(cannot(format!("make {}", path.display())))?;
    attach("tmpfs", path, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, "mode=0755")
}

fn attach(
    source: &str,
    target: impl AsRef<Path>,
    kind: &str,
    flags: MountFlags,
    options: &str,
) -> Result<()> {
    let target = target.as_ref();
    let what = format!("mount {source} ({kind}) on {}", target.display());
    let options = CString::new(options).map_err(|error| cannot(&what)(io::Error::other(error)))?;
    mount(source, target, kind, flags, options.as_c_str()).map_err(cannot(what))
}
