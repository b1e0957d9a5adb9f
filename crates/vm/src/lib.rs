//! QEMU: accelerator probe, kernel and initramfs, command line, QMP.
