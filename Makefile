# SPDX-License-Identifier: Apache-2.0 OR MIT
# The task runner: each recipe is a line or two that can be pasted. ./demo and ./test install what is missing first.

PREFIX ?= /usr/local
DESTDIR ?=
TARGET := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release
# Where isthmus looks for its provider, relative to its own place; what libfabric finds must end in fi.so.
PROVIDER := $(TARGET)/lib/isthmus/libisthmus-fi.so

export PATH := $(shell scripts/find-cargo):$(PATH)

.PHONY: all check fmt clippy unit doc scripts programs test loom vm-test bench install uninstall clean

# Everything that users run.
all:
	cargo build --release --workspace
	install -D -m 755 $(RELEASE)/libisthmus_fi.so $(PROVIDER)

# Before every push.
check: fmt clippy unit doc scripts

fmt:
	cargo fmt --all -- --check

clippy:
	cargo clippy --workspace --all-targets -- -D warnings

unit:
	cargo test --workspace --quiet --no-fail-fast

doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --quiet

scripts:
	bash -n demo test .ci/run scripts/install-deps scripts/install-mpi scripts/find-cargo tests/programs/run
	PYTHONPYCACHEPREFIX=build/pycache python3 -m py_compile tests/mpi4py/run tests/mpi4py/worker.py tests/uid/run tests/programs/bench tests/run/ends tests/run/visit

# What CI runs: all of the above and below that fits into 40 minutes.
test:
	./test

# The model checker, on what must hold between two writers of one memory; a target of its own, as its flag touches all.
loom:
	RUSTFLAGS="--cfg loom" cargo test --release -p isthmus-lockfree --test loom --target-dir $(TARGET)/loom

# Boots guests under QEMU.
vm-test:
	ISTHMUS_TEST_VM=1 cargo test --release -p isthmus-vm --test boot -- --nocapture

# The benchmark program with each MPI: it must compile without a warning, and all messages arrive whole.
programs: all
	tests/programs/run $(RELEASE)/isthmus build/mpi/openmpi build/mpi/mpich

bench: all
	$(RELEASE)/isthmus bench mpi --vms 2

install:
	install -D -m 755 $(RELEASE)/isthmus $(DESTDIR)$(PREFIX)/bin/isthmus
	install -D -m 755 $(RELEASE)/libisthmus_fi.so $(DESTDIR)$(PREFIX)/lib/isthmus/libisthmus-fi.so
	for page in man/*.[1-8]; do install -D -m 644 $$page $(DESTDIR)$(PREFIX)/share/man/man$${page##*.}/$${page##*/}; done

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/isthmus $(DESTDIR)$(PREFIX)/lib/isthmus/libisthmus-fi.so
	for page in man/*.[1-8]; do rm -f $(DESTDIR)$(PREFIX)/share/man/man$${page##*.}/$${page##*/}; done

clean:
	cargo clean
	rm -rf build
