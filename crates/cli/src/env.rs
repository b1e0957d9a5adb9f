//! `isthmus env`.

use std::os::unix::ffi::OsStrExt;

use isthmus_region::text::quoted;
use isthmus_run::{libraries, mpi};

use crate::run::YesNo;
use crate::size;

/// Print the environment that makes programs of your own use isthmus
///
/// For an mpirun that you start yourself, beside a service that runs (`isthmus host` or `isthmus guest`):
///
///     eval "$(isthmus env --mpi openmpi)"
///     mpirun -n 2 -x FI_PROVIDER_PATH -x FI_PROVIDER ./prog
///
/// Hydra (MPICH, Intel MPI) hands all variables to its ranks. Open MPI hands on those that begin with OMPI_MCA_, and the
/// others only if `-x` names them.
///
/// With --sysv, for programs that use System V IPC; and for those of an MPI only if --mpi is there, too:
///
///     (eval "$(isthmus env --sysv)" && exec ./prog)
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// openmpi, openmpi4, openmpi5, mpich, intel, or the directory of an MPI; by default the mpirun on the PATH
    #[arg(long, value_name = "NAME|DIR")]
    mpi: Option<String>,
    /// Send what goes between ranks of one host through the region, too; by default MPICH and Intel MPI use their own
    /// shared memory there, and Open MPI for windows
    #[arg(long, value_name = "yes|no", num_args = 0..=1, require_equals = true, default_value = "no", default_missing_value = "yes", hide_possible_values = true, hide_default_value = true)]
    through_region: YesNo,
    /// Have programs' System V IPC go through the region: preloads libisthmus-sysv.so into all that the shell starts
    #[arg(long)]
    sysv: bool,
    /// Put large allocations of ranks into the region, up to SIZE of each (without SIZE 64M): preloads libisthmus-alloc.so into all
    /// that the shell starts. Needs a region with room for them (isthmus host --region-size), and in a VM the guest driver or a memory device
    #[arg(long, value_name = "SIZE", default_value = "0", num_args = 0..=1, default_missing_value = "64M", value_parser = size::parse_or_none)]
    alloc: u64,
}

impl Args {
    pub(crate) fn run(&self) -> i32 {
        match self.print() {
            Ok(()) => 0,
            Err(e) => {
                isthmus_region::tell!("isthmus: {}", e.line());
                e.exit_code()
            }
        }
    }

    fn print(&self) -> isthmus_run::Result<()> {
        let export = |name: &str, value: &[u8]| {
            isthmus_region::say!("export {name}={}", quoted(&String::from_utf8_lossy(value)))
        };
        let mut wanted = Vec::new();
        if self.alloc > 0 {
            wanted.push(libraries::alloc()?);
            export(libraries::ALLOC_VARIABLE, self.alloc.to_string().as_bytes());
        }
        if self.sysv {
            wanted.push(libraries::sysv()?);
        }
        let others = std::env::var_os(libraries::PRELOAD_VARIABLE);
        if let Some(value) = libraries::preload_all(&wanted, others)? {
            export(libraries::PRELOAD_VARIABLE, value.as_bytes());
        }
        if !self.sysv || self.mpi.is_some() {
            self.print_mpi(&export)?;
        }
        if let Some(socket) = std::env::var_os("ISTHMUS_SOCKET") {
            export("ISTHMUS_SOCKET", socket.as_bytes());
        }
        Ok(())
    }

    fn print_mpi(&self, export: &dyn Fn(&str, &[u8])) -> isthmus_run::Result<()> {
        // A name is enough: that MPI need not be installed here. If it is, its settings may differ.
        let found = mpi::find(self.mpi.as_deref(), None);
        let named = self.mpi.as_deref().and_then(mpi::Flavour::named).and_then(<[_]>::first);
        let (flavour, home) = match (found, named) {
            (Ok(mpi), _) => (mpi.flavour, mpi::home(&mpi)),
            (Err(_), Some(flavour)) => (*flavour, mpi::Environment::new()),
            (Err(e), None) => return Err(e),
        };
        let transport =
            mpi::transport(flavour, &mpi::provider_directory()?, self.through_region == YesNo::Yes);
        for (name, value) in home.into_iter().chain(transport) {
            export(&name.to_string_lossy(), value.as_bytes());
        }
        Ok(())
    }
}
