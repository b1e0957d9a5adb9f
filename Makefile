# SPDX-License-Identifier: Apache-2.0 OR MIT
# The task runner: each recipe is a line or two that can be pasted. ./demo and ./test install what is missing first.

PREFIX ?= /usr/local
DESTDIR ?=
TARGET := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release
# Where isthmus looks for its provider, relative to its own place; what libfabric finds must end in fi.so.
PROVIDER := $(TARGET)/lib/isthmus/libisthmus-fi.so
# Its library for System V IPC, beside it.
SYSV := $(TARGET)/lib/isthmus/libisthmus-sysv.so

# And the one for large allocations.
ALLOC := $(TARGET)/lib/isthmus/libisthmus-alloc.so

export PATH := $(shell scripts/find-cargo):$(PATH)

.PHONY: all check fmt clippy unit doc scripts commits programs test loom aarch64 replay fuzz vm-test bench install uninstall deb clean

# Everything that users run.
all:
	cargo build --release --workspace --exclude isthmus-fuzz
	install -D -m 755 $(RELEASE)/libisthmus_fi.so $(PROVIDER)
	install -D -m 644 $(RELEASE)/libisthmus_preload.so $(SYSV)
	install -D -m 644 $(RELEASE)/libisthmus_alloc.so $(ALLOC)
	install -D -m 644 $(RELEASE)/libisthmus_c.so $(TARGET)/lib/libisthmus.so.0
	ln -sfn libisthmus.so.0 $(TARGET)/lib/libisthmus.so

# Before every push.
check: fmt clippy unit doc scripts commits

fmt:
	cargo fmt --all -- --check

clippy:
	cargo clippy --workspace --all-targets -- -D warnings

unit:
	tests/unit

doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --quiet

# Every script by its first line: the shell's are parsed, Python's compiled.
SCRIPTS := find demo test .ci examples scripts tests packaging fuzz/run -type f ! -name '*.[ch]' -exec awk
scripts:
	$(SCRIPTS) 'FNR == 1 && /^\#!.*sh$$/ { print FILENAME } { nextfile }' {} + | xargs -n 1 bash -n
	$(SCRIPTS) 'FNR == 1 && /^\#!.*python3/ { print FILENAME } { nextfile }' {} + | PYTHONPYCACHEPREFIX=build/pycache xargs python3 -m py_compile tests/pages.py
	tests/docs/install-deps

# Messages of commits.
commits:
	tests/docs/commits

# What CI runs: all of the above and below that fits into some 35 minutes.
test:
	./test

# Whether it is x86-64 alone: everything must type-check for another processor. Needs rustup, which has its standard library.
aarch64:
	rustup target add aarch64-unknown-linux-gnu
	cargo check --target aarch64-unknown-linux-gnu --workspace --exclude isthmus-fuzz

# The model checker, on what must hold between two writers of one memory; a target of its own, as its flag touches all.
loom:
	RUSTFLAGS="--cfg loom" cargo test --release -p isthmus-lockfree --test loom --test commit_loom --test mcas_loom --test stream_loom --test sync_loom --test bell_loom --test at_work_loom --target-dir $(TARGET)/loom

# The fuzz targets without libFuzzer: every kept input, and FUZZ_SECONDS (1) of mutations for each. `unit` has it, too.
replay:
	cargo test --release --package isthmus-fuzz -- --nocapture

# The fuzz targets under libFuzzer, T= one of them, S= seconds for each.
fuzz:
	fuzz/run $(or $(S),60) $(T)

# Boots guests under QEMU.
vm-test:
	ISTHMUS_TEST_VM=1 cargo test --release --workspace --test boot -- --nocapture
	ISTHMUS_TEST_VM=1 cargo test --release --workspace --test guests

# The benchmark program with each MPI: it must compile without a warning, and all messages arrive whole.
programs: all
	tests/programs/run $(RELEASE)/isthmus build/mpi/openmpi build/mpi/mpich

bench: all
	$(RELEASE)/isthmus bench mpi --vms 2

# Everything below PREFIX; unit files get the place of the program. People who package it set DESTDIR.
BIN := $(DESTDIR)$(PREFIX)/bin
LIB := $(DESTDIR)$(PREFIX)/lib
SHARE := $(DESTDIR)$(PREFIX)/share
# Below a home only share is one of the places where systemd looks for units of users (systemd.unit(5)).
USER_UNITS := $(if $(filter /usr /usr/local,$(PREFIX)),$(LIB),$(SHARE))/systemd/user
UNIT := sed 's|@BINDIR@|$(PREFIX)/bin|'
COMPLETIONS := bash-completion/completions/isthmus zsh/site-functions/_isthmus fish/vendor_completions.d/isthmus.fish

install:
	install -D -m 755 $(RELEASE)/isthmus $(BIN)/isthmus
	install -D -m 755 $(RELEASE)/libisthmus_fi.so $(LIB)/isthmus/libisthmus-fi.so
	install -D -m 644 $(RELEASE)/libisthmus_preload.so $(LIB)/isthmus/libisthmus-sysv.so
	install -D -m 644 $(RELEASE)/libisthmus_alloc.so $(LIB)/isthmus/libisthmus-alloc.so
	install -D -m 644 $(RELEASE)/libisthmus_c.so $(LIB)/libisthmus.so.0
	ln -sfn libisthmus.so.0 $(LIB)/libisthmus.so
	install -D -m 644 include/isthmus.h $(DESTDIR)$(PREFIX)/include/isthmus.h
	install -D -m 644 include/isthmus_fi.h $(DESTDIR)$(PREFIX)/include/isthmus_fi.h
	install -d $(LIB)/pkgconfig && sed 's|@PREFIX@|$(PREFIX)|' packaging/isthmus.pc.in >$(LIB)/pkgconfig/isthmus.pc
	for page in man/*.[1-8]; do install -D -m 644 $$page $(SHARE)/man/man$${page##*.}/$${page##*/} || exit 1; done
	install -d $(LIB)/systemd/system $(USER_UNITS)
	$(UNIT) packaging/isthmus-host.service.in >$(LIB)/systemd/system/isthmus-host.service
	$(UNIT) packaging/isthmus-guest.service.in >$(LIB)/systemd/system/isthmus-guest.service
	$(UNIT) packaging/isthmus-host.user.service.in >$(USER_UNITS)/isthmus-host.service
	install -D -m 644 packaging/60-isthmus.rules $(LIB)/udev/rules.d/60-isthmus.rules
	install -D -m 644 packaging/isthmus.sysusers $(LIB)/sysusers.d/isthmus.conf
	for file in $(COMPLETIONS); do install -d $(SHARE)/$${file%/*} && \
	    $(RELEASE)/isthmus completions $${file%%[-/]*} >$(SHARE)/$$file || exit 1; done

uninstall:
	rm -f $(LIB)/libisthmus.so.0 $(LIB)/libisthmus.so $(DESTDIR)$(PREFIX)/include/isthmus.h $(LIB)/pkgconfig/isthmus.pc
	rm -f $(BIN)/isthmus $(DESTDIR)$(PREFIX)/include/isthmus_fi.h $(LIB)/isthmus/libisthmus-fi.so $(LIB)/isthmus/libisthmus-sysv.so $(LIB)/isthmus/libisthmus-alloc.so \
	    $(LIB)/systemd/system/isthmus-host.service \
	    $(LIB)/systemd/system/isthmus-guest.service $(USER_UNITS)/isthmus-host.service \
	    $(LIB)/udev/rules.d/60-isthmus.rules $(LIB)/sysusers.d/isthmus.conf
	for page in man/*.[1-8]; do rm -f $(SHARE)/man/man$${page##*.}/$${page##*/}; done
	for file in $(COMPLETIONS); do rm -f $(SHARE)/$$file; done
	-rmdir --ignore-fail-on-non-empty $(LIB)/isthmus

# Debian packages, for this machine and for VMs, in target/deb.
deb: all
	packaging/build-deb $(TARGET)/deb

clean:
	cargo clean
	rm -rf build
