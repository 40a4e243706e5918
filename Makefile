# The commands of this project; `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help demo test gate check book unit examples python wheel test-arm64 test-libfabric2 test-hosts test-verbs test-machines test-slurm test-python test-clients test-torch-files test-judges chaos soak fuzz sanitize bench peers picture collectives setup clean
MAKEFLAGS += --no-print-directory
.NOTPARALLEL:

help: ## lists the commands
	@sed -n 's/^\([a-z0-9-]*\):.* ## \(.*\)/make \1\t\2/p' Makefile | expand -t 24

demo: ## installs what is missing, builds, reduces 8 B to 64 MiB among 4 ranks over TCP and prints the table
	@ci/setup.sh build
	@echo "demo: the first build takes some 3 minutes on 2 cores; the measurement takes some 10 seconds"
	unisono=$$(ci/built.sh unisono --profile demo -p unisono-cli) && \
	  "$$unisono" bench all_reduce --ranks 4 --provider tcp -b 8 -e 64M -f 2

test: ## shows that the library works on this machine: all tests and doctests, the long ones in short, examples, the Python package
	@TESTS=brief ci/slowest.sh sh -c '$(MAKE) unit && $(MAKE) -j2 -O examples python'

gate: check unit examples python test-libfabric2 test-judges test-hosts test-verbs test-slurm test-python test-clients test-machines ## all that continuous integration runs: check, the tests in full, and each of the goals test-... but arm64 and torch-files (an hour)

check: ## format, clippy with all features and with none, docs and the book, with warnings denied; packages as cargo publish makes them
	@ci/setup.sh build check
	cargo fmt --all --check
	@ci/python.sh check
	cargo clippy --workspace --all-targets --all-features -- -D warnings
	cargo clippy -p unisono -p unisono-transport -p unisono-files -p unisono-cli --no-default-features --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --all-features
	@ci/book.sh
	@ci/package.sh
	@# As on docs.rs, where neither libfabric nor hwloc nor what finds and reads them is there.
	DOCS_RS=1 PKG_CONFIG=false CC=false LIBCLANG_PATH=/nowhere cargo check --target-dir "$$(ci/target.sh)/docs.rs" -p unisono
	@# For a free-threaded Python, which need not be at hand: PyO3 then builds for that version alone.
	DOCS_RS=1 PKG_CONFIG=false CC=false LIBCLANG_PATH=/nowhere PYO3_CROSS=1 PYO3_CROSS_PYTHON_VERSION=3.14t \
	  cargo check --target-dir "$$(ci/target.sh)/docs.rs" -p unisono-python

book: ## builds the papers as a book and prints its first page; installs mdBook, once (a minute)
	@ci/book.sh

unit: ## tests and doctests, in full; what they could not run says SKIPPED
	@ci/setup.sh build
	@ci/test.sh

examples: ## runs every example with several ranks
	@ci/setup.sh build
	@ci/examples.sh

python: ## the Python package's own tests, which need no torch
	@ci/python.sh test

test-python: ## the backend of torch.distributed with torch, and PyTorch's own tests of backends with 2 and 4 ranks; again with the oldest torch (4 GB of downloads, once)
	@ci/setup.sh build python
	@ci/torch.sh

test-torch-files: ## PyTorch's own test files that write gloo, on Gloo and on unisono, as a table (an hour)
	@ci/setup.sh build python
	@ci/torch_files.sh

test-clients: ## Ray, Dask, Lightning, accelerate and torchft from PyPI, on unisono (0.2 GB of downloads beside torch's, once)
	@ci/setup.sh build python
	@ci/clients.sh

wheel: ## builds the Python package's wheel for this machine's architecture, with libfabric and hwloc inside, into target/wheels
	@ci/wheel.sh

test-arm64: ## the wheel for arm64, with Debian's Python for it, on emulated processors (some 10 minutes)
	@ci/arm64.sh

test-libfabric2: ## conformance and processes again, over libfabric 2
	@ci/libfabric2.sh

chaos: ## more of the random campaign of deaths and disagreements: UNISONO_TEST_CASES (2000), UNISONO_TEST_SEED (the clock)
	@ci/setup.sh build
	UNISONO_TEST_CASES=$${UNISONO_TEST_CASES:-2000} UNISONO_TEST_SEED=$${UNISONO_TEST_SEED:-$$(date +%s)} \
	  cargo test --workspace --test processes -- campaign

soak: chaos ## what is long: chaos, UNISONO_TEST_SOAK (a million) mixed operations at 8 ranks, and PyTorch's tests with 3 and 8 ranks (hours)
	@ci/setup.sh build python
	UNISONO_TEST_SOAK=$${UNISONO_TEST_SOAK:-1000000} UNISONO_TEST_SEED=$${UNISONO_TEST_SEED:-$$(date +%s)} \
	  UNISONO_TEST_PROVIDERS=default,shm,tcp cargo test --release -p unisono --test processes -- "mixed operations"
	@ci/torch.sh --suite 3 8

test-hosts: ## ranks on several hosts, made of network namespaces, over libfabric 1 and 2 (needs root)
	@ci/setup.sh build hosts
	UNISONO_TEST_HOSTS=1 cargo test --workspace --test hosts
	UNISONO_TEST_HOSTS=1 cargo test --workspace --test command_line -- real_hosts:: --nocapture
	@UNISONO_TEST_HOSTS=1 ci/libfabric2.sh hosts

test-verbs: ## conformance, collectives and a checked bench over verbs on soft-RoCE in an emulated machine
	@ci/verbs.sh

test-slurm: ## ranks started by srun, sbatch, and Open MPI's and MPICH's launchers, on a Slurm cluster of namespaces (needs root)
	@ci/slurm.sh

test-machines: ## a short suite on machines of other kinds: emulated ones (sockets, NUMA nodes, little memory, no /sys), and the oldest and newest Debian (needs root)
	@ci/machines.sh

test-judges: ## the cost model's predictions before SimGrid, which replays the same schedules
	@ci/setup.sh build judges
	UNISONO_TEST_JUDGES=1 cargo test --workspace --test command_line -- judges:: --show-output

fuzz: ## runs the fuzz targets, each for UNISONO_FUZZ_SECONDS (30), with cargo-fuzz on a nightly toolchain
	@ci/fuzz.sh

sanitize: ## the transports' and the engine's tests under the sanitizers that the nightly toolchain at hand allows
	@ci/sanitize.sh

bench: ## criterion's benches, then the comparison with Gloo, Open MPI, MPICH and Intel MPI
	@ci/setup.sh build
	cargo bench --workspace
	@$(MAKE) peers

peers: ## compares five collectives with Gloo, Open MPI, MPICH and Intel MPI side by side, at 2, 4 and 8 ranks, over TCP and over shared memory (an hour each), and torch.distributed over Gloo with it over unisono
	@ci/setup.sh build python
	@benches/peers/run.sh
	@benches/peers/run.sh --over shm
	@benches/peers/run.sh --torch

picture: ## draws docs/picture.svg: all_reduce among 4 ranks beside Gloo, Open MPI, MPICH and Intel MPI (minutes, on an idle machine)
	@ci/setup.sh build python
	rm -rf docs/picture
	@benches/peers/run.sh --collective all_reduce --ranks 4 --json docs/picture
	program=$$(ci/built.sh unisono --release -p unisono-cli) && cd docs/picture && \
	  LC_ALL=C && export LC_ALL && "$$program" bench --plot ../picture.svg unisono.json [!u]*.json

collectives: ## draws docs/collectives/*.svg, what 4 ranks do in each collective, from the schedules
	unisono=$$(ci/built.sh unisono -p unisono-cli) && for picture in docs/collectives/*.svg; do \
	  name=$$(basename "$$picture" .svg) && "$$unisono" simulate "$${name%-*}" --algorithm "$${name#*-}" --ranks 4 --ranks-per-host 1 \
	    --bytes 16 --fabric tcp --draw docs/collectives >/dev/null || exit 1; done

setup: ## installs what the other commands need
	@ci/setup.sh build check python machines roots slurm

clean: ## removes what was built, and the virtual environments with it
	cargo clean
