//! MPIs that are on this machine but not on the PATH, for the error text when no MPI was found.
//!
//! Nothing is executed and no tree is searched: only the places are read where distributions, this checkout's
//! scripts/install-mpi, module files, Spack, Conda and people by hand put an MPI. The programs beside a launcher show which
//! MPI it belongs to.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Flavour;

/// How many entries of a directory are checked, of those whose names may be an MPI's.
const ENTRIES: usize = 200;
/// How many names of a directory are read: a distribution's directory of libraries has some thousands.
const NAMES: usize = 20_000;
/// How many MPIs are named.
const NAMED: usize = 8;
/// How many levels above a directory the checkout that holds it may begin.
const UP: usize = 4;
/// Names that module files of MPIs have, in small letters.
const MODULES: [&str; 9] = [
    "mpi",
    "openmpi",
    "ompi",
    "mpich",
    "impi",
    "intelmpi",
    "intel-mpi",
    "intel-oneapi-mpi",
    "intelmpi-oneapi",
];

/// How to use an MPI that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By the directory that holds `bin/mpirun`.
    Directory(PathBuf, Flavour),
    /// By a module.
    Module(String),
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(dir, flavour) => {
                let dir = dir.display().to_string();
                let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@:,=".contains(c);
                let dir =
                    if dir.chars().all(plain) { dir } else { format!("'{}'", dir.replace('\'', r"'\''")) };
                let version = match flavour {
                    Flavour::OpenMpi => " 5",
                    Flavour::OpenMpi4 => " 4",
                    Flavour::Mpich | Flavour::Intel => "",
                };
                write!(f, "isthmus run --mpi {dir} ...    ({}{version})", flavour.title())
            }
            Self::Module(name) => write!(f, "module load {name}    (then the same command again)"),
        }
    }
}

/// Where to search.
#[derive(Clone, Debug, Default)]
struct Places {
    /// The root of the file system.
    root: PathBuf,
    home: Option<PathBuf>,
    /// Directories in or below a checkout.
    beside: Vec<PathBuf>,
    /// Directories of module files.
    modules: Vec<PathBuf>,
    /// Roots of installations that the environment names.
    named: Vec<PathBuf>,
}

/// MPIs of `flavours` elsewhere than on the PATH; of all flavours if there are none.
pub(super) fn elsewhere(flavours: Option<&[Flavour]>) -> Vec<Way> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let program = std::env::current_exe().ok();
    let beside = [std::env::current_dir().ok(), program];
    let modules = variable("MODULEPATH").unwrap_or_else(|| "/usr/share/modulefiles:/etc/modulefiles".into());
    let named = ["I_MPI_ROOT", "MPI_HOME", "MPI_ROOT", "CONDA_PREFIX", "VIRTUAL_ENV"];
    let places = Places {
        root: "/".into(),
        home: variable("HOME").map(PathBuf::from),
        beside: beside.into_iter().flatten().collect(),
        modules: std::env::split_paths(&modules).collect(),
        named: named.iter().filter_map(|name| variable(name)).map(PathBuf::from).collect(),
    };
    places.find(flavours)
}

/// What to add to a message that no MPI was found.
pub(super) fn hint(ways: &[Way]) -> String {
    if ways.is_empty() {
        return String::new();
    }
    let lines: String = ways.iter().map(|way| format!("\n  {way}")).collect();
    format!("; on this machine there are:{lines}")
}

/// Entries of `dir` whose names are `wanted`, in order, up to a limit.
fn entries_like(dir: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .take(NAMES)
        .filter(|entry| entry.file_name().to_str().is_some_and(&wanted))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found.truncate(ENTRIES);
    found
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    entries_like(dir, |_| true)
}

/// Entries that are named after an MPI.
fn mpis_in(dir: &Path) -> Vec<PathBuf> {
    entries_like(dir, |name| name.contains("mpi"))
}

/// Whether only root and this user can put something into directory `path`, or replace it: otherwise any user may have
/// put a program there, as below /tmp.
fn is_ours(path: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    let safe = |part: &Path| {
        fs::symlink_metadata(part).is_ok_and(|meta| {
            // In a sticky directory every user makes files, and none replaces another's.
            let is_sticky = part != path && meta.mode() & 0o1000 != 0;
            let is_closed = meta.is_symlink() || meta.mode() & 0o002 == 0 || is_sticky;
            [0, user].contains(&meta.uid()) && is_closed
        })
    };
    // The path as written, and the path that links lead to.
    let real = fs::canonicalize(path).ok();
    real.is_some_and(|real| path.ancestors().chain(real.ancestors()).all(safe))
}

fn name_of(path: &Path) -> &str {
    path.file_name().and_then(OsStr::to_str).unwrap_or_default()
}

/// Which MPI is in `dir`, which holds `bin/mpirun` or `bin/mpiexec`.
fn flavour_of(dir: &Path) -> Option<Flavour> {
    let bin = dir.join("bin");
    let launcher = ["mpirun", "mpiexec"].iter().map(|name| bin.join(name)).find(|path| path.is_file())?;
    // The target of a link may have its own programs beside it, and a name that says more.
    let real = fs::canonicalize(launcher).ok()?;
    let there = |names: &[&str]| {
        names.iter().any(|name| {
            name_of(&real) == *name || bin.join(name).exists() || real.with_file_name(name).exists()
        })
    };
    // Debian has several side by side in /usr/bin: the name that a link leads to is the better evidence.
    match name_of(&real) {
        "orterun" => return Some(Flavour::OpenMpi4),
        "prterun" => return Some(Flavour::OpenMpi),
        "mpiexec.hydra" if !there(&["hydra_bstrap_proxy"]) => return Some(Flavour::Mpich),
        _ => {}
    }
    if there(&["hydra_bstrap_proxy"]) {
        Some(Flavour::Intel)
    } else if there(&["prterun", "prted"]) {
        Some(Flavour::OpenMpi)
    } else if there(&["orterun", "orted"]) {
        Some(Flavour::OpenMpi4)
    } else if there(&["hydra_pmi_proxy", "mpichversion"]) {
        Some(Flavour::Mpich)
    } else {
        None
    }
}

impl Places {
    /// The directories that may hold an MPI, the likeliest first.
    fn candidates(&self) -> Vec<PathBuf> {
        let mut found = self.named.clone();
        for start in &self.beside {
            for dir in start.ancestors().take(UP) {
                let near = entries(&dir.join("build/mpi")).into_iter();
                let near = near.chain([".venv", "venv"].map(|name| dir.join(name)));
                // The PATH would have the directory of their programs.
                found.extend(near.filter(|path| is_ours(&path.join("bin"))));
            }
        }
        let root = |path: &str| self.root.join(path);
        // Debian and its like; Fedora and its like; SUSE; Intel's own; by hand.
        let libraries = |name: &str| name.contains("linux") || name.starts_with("lib");
        let places = entries_like(&root("usr/lib"), libraries).into_iter();
        for place in places.chain([root("usr/lib"), root("usr/lib64")]) {
            found.extend(mpis_in(&place));
        }
        found.extend(entries(&root("usr/lib64/mpi/gcc")));
        found.extend(entries(&root("opt/intel/oneapi/mpi")));
        found.push(root("usr"));
        found.push(root("usr/local"));
        for base in
            [root("opt"), root("usr/local")].into_iter().chain(self.home.iter().map(|h| h.join("opt")))
        {
            for dir in entries(&base) {
                if name_of(&dir).contains("mpi") {
                    found.extend(entries(&dir));
                }
                found.push(dir);
            }
        }
        if let Some(home) = &self.home {
            found.extend([".local", "miniconda3", "anaconda3", "miniforge3"].map(|name| home.join(name)));
            // By architecture and compiler, or, since Spack 1.0, by architecture.
            for architecture in entries(&home.join("spack/opt/spack")) {
                for dir in entries(&architecture) {
                    found.extend(mpis_in(&dir));
                    found.push(dir);
                }
            }
        }
        found
    }

    /// Modules by the name of an MPI, each with its last version.
    fn module_names(&self) -> Vec<String> {
        let plain = |path: &Path| name_of(path).trim_end_matches(".lua").to_owned();
        let is_mpi =
            |name: &str| MODULES.contains(&name.trim_end_matches(".lua").to_ascii_lowercase().as_str());
        let visible = |name: &str| !name.starts_with('.') && !name.contains(char::is_control);
        let mut found = Vec::new();
        for entry in self.modules.iter().flat_map(|dir| entries_like(dir, is_mpi)) {
            let name = plain(&entry);
            if entry.is_file() {
                found.push(name);
                continue;
            }
            let versions: Vec<String> = entries_like(&entry, visible)
                .iter()
                .filter(|path| path.is_file())
                .map(|path| format!("{name}/{}", plain(path)))
                .collect();
            // Those of `mpi` are different MPIs, as on Fedora.
            let all = name == "mpi";
            found.extend(versions.into_iter().rev().take(if all { NAMED } else { 1 }));
        }
        found
    }

    fn find(&self, flavours: Option<&[Flavour]>) -> Vec<Way> {
        let wanted = |flavour: &Flavour| flavours.is_none_or(|wanted| wanted.contains(flavour));
        let mut seen = Vec::new();
        let mut ways: Vec<Way> = Vec::new();
        // A line that cannot be typed as shown, or that controls the terminal, is of no use.
        let printable = |dir: &PathBuf| dir.to_str().is_some_and(|text| !text.contains(char::is_control));
        for dir in self.candidates().into_iter().filter(printable) {
            let Some(flavour) = flavour_of(&dir).filter(wanted) else { continue };
            // Links to one place are one MPI.
            let real = fs::canonicalize(&dir).unwrap_or_else(|_| dir.clone());
            if !seen.contains(&real) {
                seen.push(real);
                ways.push(Way::Directory(dir, flavour));
            }
        }
        if flavours.is_none() || !ways.iter().any(|way| matches!(way, Way::Directory(..))) {
            ways.extend(self.module_names().into_iter().map(Way::Module));
        }
        ways.truncate(NAMED);
        ways
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn file(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn mpis_are_found_where_people_and_distributions_put_them() {
        let top = tempfile::tempdir().unwrap();
        let root = top.path().to_owned();
        for (dir, beside) in [
            ("opt/intel/oneapi/mpi/2021.18", "hydra_bstrap_proxy"),
            ("opt/openmpi/5.0.7", "prterun"),
            ("usr/lib64/mpich", "hydra_pmi_proxy"),
            ("home/ann/spack/opt/spack/linux-x/gcc-12/openmpi-4.1.6-abc", "orted"),
            ("opt/mvapich", "mpiname"),
        ] {
            file(&root.join(dir).join("bin/mpirun"));
            file(&root.join(dir).join("bin").join(beside));
        }
        // In a checkout, a link to the launcher whose name says which MPI it is.
        file(&root.join("usr/libexec/orterun"));
        let checkout = root.join("src/isthmus");
        fs::create_dir_all(checkout.join("build/mpi/openmpi4/bin")).unwrap();
        symlink(root.join("usr/libexec/orterun"), checkout.join("build/mpi/openmpi4/bin/mpirun")).unwrap();
        let modules = root.join("modules");
        for module in ["openmpi/4.1.5.lua", "openmpi/5.0.3.lua", "mpi/mpich-x86_64", "gcc/13", "mpi/.version"]
        {
            file(&modules.join(module));
        }
        let places = Places {
            root: root.clone(),
            home: Some(root.join("home/ann")),
            beside: vec![checkout.join("target/release")],
            modules: vec![modules, root.join("nowhere")],
            named: Vec::new(),
        };
        let directory = |dir: &str, flavour| Way::Directory(root.join(dir), flavour);
        let module = |name: &str| Way::Module(name.into());
        assert_eq!(
            places.find(None),
            [
                directory("src/isthmus/build/mpi/openmpi4", Flavour::OpenMpi4),
                directory("usr/lib64/mpich", Flavour::Mpich),
                directory("opt/intel/oneapi/mpi/2021.18", Flavour::Intel),
                directory("opt/openmpi/5.0.7", Flavour::OpenMpi),
                directory("home/ann/spack/opt/spack/linux-x/gcc-12/openmpi-4.1.6-abc", Flavour::OpenMpi4),
                module("mpi/mpich-x86_64"),
                module("openmpi/5.0.3"),
            ]
        );
        assert_eq!(places.find(Some(&[Flavour::Mpich])), [directory("usr/lib64/mpich", Flavour::Mpich)]);
        assert_eq!(Places { root: root.join("empty"), ..Places::default() }.find(None), []);
    }

    #[test]
    fn each_comes_with_the_line_that_uses_it() {
        let ways = [
            Way::Directory("/opt/mpich".into(), Flavour::Mpich),
            Way::Directory("/home/ann b/mpi".into(), Flavour::OpenMpi),
            Way::Module("openmpi/5.0.3".into()),
        ];
        assert_eq!(
            hint(&ways),
            "; on this machine there are:\n  isthmus run --mpi /opt/mpich ...    (MPICH)\n  \
             isthmus run --mpi '/home/ann b/mpi' ...    (Open MPI 5)\n  \
             module load openmpi/5.0.3    (then the same command again)"
        );
        assert_eq!(hint(&[]), "");
    }

    #[test]
    fn a_large_directory_is_not_read_to_its_end() {
        let top = tempfile::tempdir().unwrap();
        for number in 0..2 * ENTRIES {
            fs::write(top.path().join(number.to_string()), "").unwrap();
        }
        assert_eq!(entries(top.path()).len(), ENTRIES);
        let read = std::cell::Cell::new(0);
        for number in 2 * ENTRIES..NAMES + ENTRIES {
            fs::hard_link(top.path().join("0"), top.path().join(number.to_string())).unwrap();
        }
        let none = entries_like(top.path(), |_| {
            read.set(read.get() + 1);
            false
        });
        assert!(none.is_empty());
        assert_eq!(read.get(), NAMES);
    }

    #[test]
    fn an_mpi_among_many_libraries_is_found() {
        let top = tempfile::tempdir().unwrap();
        let libraries = top.path().join("usr/lib64");
        for number in 0..5 * ENTRIES {
            file(&libraries.join(format!("libx{number}.so")));
        }
        for name in ["bin/mpirun", "bin/orted"] {
            file(&libraries.join("openmpi").join(name));
        }
        for number in 5 * ENTRIES..10 * ENTRIES {
            file(&libraries.join(format!("libx{number}.so")));
        }
        let places = Places { root: top.path().to_owned(), ..Places::default() };
        assert_eq!(places.find(None), [Way::Directory(libraries.join("openmpi"), Flavour::OpenMpi4)]);
    }

    #[test]
    fn what_anybody_could_have_put_there_is_not_named() {
        let top = tempfile::tempdir().unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let job = top.path().join("job");
        fs::create_dir_all(&job).unwrap();
        let mpi = top.path().join("build/mpi/x");
        for name in ["bin/mpirun", "bin/prted", "../a\x1b[2Jb/bin/mpirun", "../a\x1b[2Jb/bin/prted"] {
            file(&mpi.join(name));
        }
        let places = Places { root: top.path().join("empty"), beside: vec![job], ..Places::default() };
        let found = [Way::Directory(mpi.clone(), Flavour::OpenMpi)];
        assert_eq!(places.find(None), found);
        for open in [mpi.join("bin"), mpi.clone(), top.path().join("build")] {
            mode(&open, 0o777);
            assert_eq!(places.find(None), [], "{}", open.display());
            mode(&open, 0o755);
        }
        mode(&mpi.join("bin"), 0o1777);
        assert_eq!(places.find(None), []);
        mode(&mpi.join("bin"), 0o755);
        // As /tmp is.
        mode(top.path(), 0o1777);
        assert_eq!(places.find(None), found);
        // Only root can make another user's.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(top.path().join("build"), Some(12_345), None).unwrap();
            assert_eq!(places.find(None), []);
        }
    }
}
