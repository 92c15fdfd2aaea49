# make        builds for development          make test   sets up and runs every test
# make demo   sets up and runs the demo       make lint   formatting and layering
PYTHON ?= python3
VENV ?= .venv
BUILD ?= build
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)
BIN := $(VENV)/bin

.PHONY: all setup build clean
all: build

$(VENV)/.ready: tools/requirements.txt
	@echo "== Setting up the Python environment in $(VENV) (once; torch is a large download, about 2 minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r tools/requirements.txt
	@touch $@

setup: $(VENV)/.ready

$(BUILD)/build.ninja: $(VENV)/.ready
	@$(BIN)/cmake -S . -B $(BUILD) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DPython3_EXECUTABLE=$(abspath $(BIN))/python -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
	  -DCMAKE_CXX_COMPILER_LAUNCHER=$(abspath $(BIN))/ccache $(CMAKE_FLAGS)

build: $(BUILD)/build.ninja
	@$(BIN)/cmake --build $(BUILD)

clean:
	rm -rf $(BUILD)
