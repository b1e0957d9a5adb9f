//! One job: its VMs, the launcher of its MPI, guardian, rsh agent, relay, standard I/O, exit status.
