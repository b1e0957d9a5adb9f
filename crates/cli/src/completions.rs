//! `isthmus completions`.

use clap_complete::Shell;

/// Print what makes a shell complete isthmus's commands and options
///
///     isthmus completions bash >isthmus.bash && . ./isthmus.bash
///
/// For all of your shells bash looks in ~/.local/share/bash-completion/completions/isthmus. `make install` and the Debian package install this.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

impl Args {
    pub(crate) fn run(&self) -> i32 {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut crate::command(), "isthmus", &mut script);
        isthmus_region::print::to_stdout(&String::from_utf8_lossy(&script));
        0
    }
}
